"""The broker's time: seconds that only go forward, and not by leaps."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_SECONDS = 10.0  # that one look adds


class SteadyClock:
    """The system's monotonic clock; but one look adds LONGEST_SECONDS at most.

    While a client is connected the broker looks ten times a second. If more time has passed, the
    clock has leapt (a virtual machine that was moved, or stood still), or the broker itself stood
    still; it is not known what notebooks did then, so none is charged for it.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._seen = source()
        self._ahead = 0.0  # of this clock is its source

    def __call__(self) -> float:
        before, self._seen = self._seen, self._source()
        elapsed = self._seen - before
        self._ahead += elapsed - min(max(elapsed, 0.0), LONGEST_SECONDS)
        return self._seen - self._ahead

    def resume(self) -> float:
        """Count a time in which no client was there to be charged."""
        self._seen = self._source()
        return self._seen - self._ahead

    def when(self, moment: float) -> float:
        """Return the source's time at that moment of this clock, unless it leaps until then."""
        return moment + self._ahead
