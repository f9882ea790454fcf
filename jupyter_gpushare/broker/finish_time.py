"""Estimates when a session will have done its declared iterations, at its present share."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

WINDOW_SECONDS = 30.0  # older reports say little about the present share
LEAST_REPORTS, MOST_REPORTS = 16, 256  # the least count even if old: turns may be few and long
LEAST_SECONDS = 1.0  # between the first report and the last: a shorter time gives no pace


class Reported(NamedTuple):
    at: float
    iterations: int  # since the first report


class FinishTime:
    """Follows the reports of one session while its cell runs. Its waits for the device count
    as well, so the pace is that of its present share. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._reports: deque[Reported] = deque(maxlen=MOST_REPORTS)

    def forget(self) -> None:
        """Forget the reports when a cell begins or ends: the next computation may be another
        one."""
        self._reports.clear()

    def report(self, now: float, iterations: int) -> None:
        """Note that this many iterations were done since the last report."""
        if iterations:
            done = self._reports[-1].iterations + iterations if self._reports else 0
            self._reports.append(Reported(now, done))
        while len(self._reports) > LEAST_REPORTS and self._reports[1].at < now - WINDOW_SECONDS:
            self._reports.popleft()

    def seconds(self, now: float, remaining: int | None) -> float | None:
        """Return the seconds until the iterations that were `remaining` at the last report are
        done; None if that is unknown. A wait that is longer than all earlier ones makes the pace
        slower."""
        if remaining is None or len(self._reports) < 2:
            return None
        first, last = self._reports[0], self._reports[-1]
        if last.at - first.at < LEAST_SECONDS:
            return None
        longest = max(later.at - earlier.at for earlier, later in pairwise(self._reports))
        since = now - last.at
        pace = (last.at - first.at + max(0.0, since - longest)) / (
            last.iterations - first.iterations
        )
        return max(0.0, remaining * pace - min(since, longest))
