"""The waiting line: one line that tells why a process waits for the device, and for how long.

The session calls it in the thread that waits, about twice a second, and calls `finish_wait` at the
end of each wait. A cell has one line for all its waits. While waits and turns follow each other
faster than a person reads, the line is one steady sentence for all of them. The line sums up what
the session has counted, including waits too short to be shown, so that all lines together agree
with `status`.
"""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from ...format import LABELS, counted, duration, expected, plain
from ...wire.messages import Wait
from ..end_of_wait import TOLD_SECONDS, told_seconds

CLEAR = "\r\x1b[K"  # go to the first column and erase the line
REFRESH_SECONDS = 1.0  # between two texts of a steady line
# The longest round of turns that is too quick to read each of its waits, and the least wait after
# which a line is no longer steady. labextension/src/state/queue.ts has the same numbers.
ROUND_SECONDS, LEAST_SECONDS = 20.0, 6.0
COUNTED_SECONDS = 0.05  # a shorter wait adds to the time, but not to "3 waits"
STOP = "Interrupt the cell to stop waiting."
RESUME = (
    "Resume in the panel, or `%gpushare pause --resume NAME` in another notebook, ends the pause."
)


def sentence(wait: Wait) -> str:
    """Return the reason of a wait, the holder, the queue position and the expected time as text."""
    is_named = not wait.holder or wait.names_holder()
    after = "" if is_named else f" after {plain(wait.holder or '')}"
    left = wait.expected_seconds
    about = "" if left is None else f", {expected(left, wait.expected_is_bound)}"
    line = f", {LABELS['position']} {wait.position}{after}" if wait.position else ""
    why = f": {plain(wait.reason)}" if wait.reason else ""
    end = f"{RESUME} {STOP}" if any(one.code == "paused" for one in wait.why) else STOP
    left = wait.remaining_seconds
    all_done = "" if left is None else f" All iterations are done in about {duration(left)}."
    return (
        f"Waiting for the device{line}{about}"
        f" ({duration(wait.waiting_seconds)} so far){why.rstrip('.')}.{all_done} {end}"
    )


def steady(others: int, share: float, waited: float) -> str:
    """Return the sentence of a cell that takes turns; `others` is 0 where that is not known."""
    with_others = counted(others, "other") if others else "others"
    return f"Takes turns with {with_others}; {share:.0%} of the time; waited {duration(waited)}."


class Rounds:
    """The turns of one cell; each of them ends a wait. Times are of `time.monotonic`."""

    def __init__(self) -> None:
        self._began, self._device_seconds = 0.0, 0.0  # of the first turn, and before it
        self._last, self._round = 0.0, math.inf  # turn, and the time between the last two
        self._share = 0.0

    def count(self, now: float, device_seconds: float) -> None:
        """A wait has ended; `device_seconds` are those of all turns of the session before it."""
        if not self._began:
            self._began, self._device_seconds = now, device_seconds
        else:
            self._round = now - self._last
            self._share = (device_seconds - self._device_seconds) / max(now - self._began, 1e-9)
        self._last = now

    @property
    def share(self) -> float:
        """The part of the time since the first turn in which the session has had the device."""
        return min(self._share, 1.0)

    def are_quick(self, seconds: float) -> bool:
        """Whether a wait that has lasted these seconds belongs to a quick round."""
        return self._round <= ROUND_SECONDS and seconds < max(LEAST_SECONDS, 2 * self._round)

    def go_on(self, now: float) -> bool:
        """Whether waits still end one after the other."""
        return self.are_quick(now - self._last)


class WaitingLine(ABC):
    """Sums up the waits of one cell; a subclass shows the line. Any thread may call it.

    A line that cannot be shown is dropped: a front end that has gone must not end a training.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._goes_on_now = False  # a wait that is shown continues
        self._is_shown = False
        self._times = 0
        self._seconds = 0.0
        self._rounds = Rounds()
        self._others = 0

    def __call__(self, wait: Wait) -> None:
        with self._lock:
            self._goes_on_now = self._is_shown = True
            self._others = wait.others or self._others
            if self._rounds.are_quick(wait.waiting_seconds):
                self._try(self.show_steady, self.steady)
            else:
                self._try(self.show, sentence(wait))

    def finish_wait(self, seconds: float, device_seconds: float = 0.0) -> None:
        """Count a wait of `seconds`, which has ended; `device_seconds` are those that the session
        has used so far."""
        with self._lock:
            self._times += seconds >= COUNTED_SECONDS
            self._seconds += seconds
            self._rounds.count(time.monotonic(), device_seconds)
            if not self._goes_on_now:
                return
            self._goes_on_now = False
            if self._rounds.are_quick(0):
                self._try(self.show_steady, self.steady)
            else:
                self._try(self.finish, self.summary)

    def cell_ended(self, error: BaseException | None = None) -> None:
        """Close the line; the next wait begins a new one. An `error` that ended a wait is not
        summed up here, since it tells its own length."""
        with self._lock:
            self._leave_to(error)
            if self._is_shown or self._seconds >= TOLD_SECONDS:
                self._try(self.close, self.summary if self._seconds >= COUNTED_SECONDS else "")
            self._is_shown, self._times, self._seconds = False, 0, 0.0
            self._rounds, self._others = Rounds(), 0

    @abstractmethod
    def show(self, text: str) -> None:
        """Show `text` as the line, which may still change."""

    @abstractmethod
    def show_steady(self, text: str) -> None:
        """Show `text`, of a cell that takes turns, in a wait and at its end."""

    def finish(self, summary: str) -> None:
        """Show that a wait has ended; the next one of this cell uses the same line."""
        self.show(summary)

    def close(self, summary: str) -> None:  # noqa: B027  (most lines need no end)
        """End the line with its cell: later output stands below it. The summary may be empty."""

    @property
    def steady(self) -> str:
        return steady(self._others, self._rounds.share, self._seconds)

    @property
    def summary(self) -> str:
        times = f", in {self._times} waits" if self._times > 1 else ""
        return f"Waited {duration(self._seconds)} for the device{times}."

    def _leave_to(self, error: BaseException | None) -> None:
        if (seconds := told_seconds(error)) is not None:
            self._times -= seconds >= COUNTED_SECONDS
            self._seconds -= seconds

    def _try(self, show: Callable[[str], None], text: str) -> None:
        # Any error of a front end is ignored: an iteration must not fail for a line.
        with suppress(Exception):
            show(text)


class TerminalLine(WaitingLine):
    """The last line of a terminal; it is erased at the end of the wait, so that output has no gaps.

    If standard error is no terminal it shows nothing, since a log has no lines that change.
    """

    def show(self, text: str) -> None:
        self._write(CLEAR + text[: shutil.get_terminal_size().columns - 1])

    def show_steady(self, text: str) -> None:
        if self._goes_on_now:
            self.show(text)
        else:
            self._write(CLEAR)

    def finish(self, summary: str) -> None:
        self._write(CLEAR)

    def close(self, summary: str) -> None:
        if summary:
            self._write(f"{summary}\n")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(text)
            sys.stderr.flush()
