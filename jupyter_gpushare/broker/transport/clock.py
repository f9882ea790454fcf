"""The broker's time: seconds that only go forward, and never leap."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_SECONDS = 10.0  # the most that one reading adds


class SteadyClock:
    """The system's monotonic clock, except that one reading adds LONGEST_SECONDS at most.

    While a client is connected the broker reads the clock ten times a second. If more time has
    passed, the clock has leapt, because a virtual machine was moved or suspended, or the broker
    itself stood still. The broker cannot know what notebooks did meanwhile, so it charges none.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._seen = source()
        self._ahead = 0.0  # seconds that the source has gained on this clock

    def __call__(self) -> float:
        before, self._seen = self._seen, self._source()
        elapsed = self._seen - before
        self._ahead += elapsed - min(max(elapsed, 0.0), LONGEST_SECONDS)
        return self._seen - self._ahead

    def resume(self) -> float:
        """Read the clock after a time without clients, all of which counts: it charges no
        client."""
        self._seen = self._source()
        return self._seen - self._ahead

    def when(self, moment: float) -> float:
        """Return the source's time at that moment of this clock, if the source does not leap
        before."""
        return moment + self._ahead
