"""The gaps of a session: times between two iterations, in which the device would do nothing.

User code loads the next batch there, or writes a checkpoint. While other sessions want the device,
a turn is given back before a long gap, so that one notebook computes while another one loads. The
gap ahead is taken to be like the two before it.
"""

from __future__ import annotations

import math

LEAST_SECONDS = 0.005  # a shorter gap is not worth two messages
MOVES = 2  # multiple of the time to empty the lane; a shorter gap gains nothing
WANTED_SECONDS = 10.0  # how long after a preemption request others are taken to want the device


class Gaps:
    """The latest gaps of one session, and whether others want the device. Times are of
    `time.monotonic`."""

    _began: float | None  # the gap that is open

    def __init__(self) -> None:
        self._wanted_until = -math.inf
        self.forget()

    def begin(self, now: float) -> None:
        """An iteration has ended."""
        self._began = now

    def end(self, now: float) -> None:
        """The next iteration begins, or begins to wait for its turn."""
        if self._began is not None:
            self._latest, self._before = now - self._began, self._latest
            self._began = None

    def forget(self) -> None:
        """The cell has ended, and the next one may load nothing."""
        self._began = None
        self._latest = self._before = 0.0  # seconds

    def note_request(self, now: float, until_cell_ends: bool) -> None:
        """Note a preemption request. Turns that last until the cell ends also last over gaps."""
        self._wanted_until = -math.inf if until_cell_ends else now + WANTED_SECONDS

    def are_long(self, seconds_to_move: float) -> bool:
        """Return whether a gap is expected that another session could use. Survivors take
        `seconds_to_move` out of the lane."""
        return min(self._latest, self._before) >= max(LEAST_SECONDS, MOVES * seconds_to_move)

    def are_wanted(self, now: float) -> bool:
        """Return whether other sessions are taken to want the device."""
        return now < self._wanted_until
