"""Parts of the C++ of jupyter_gpushare by themselves, for tests and benchmarks."""

from __future__ import annotations

import collections.abc

import jupyter_gpushare._core

class ConcurrencyTuner:
    """Measures whether several lanes that run at once get more done than one. Sessions are numbers.

    Times are seconds of one clock. `lanes` may run at once now; `hoped` is the number of lanes that
    may turn out to be worth it, 0 while that is unknown."""
    def __init__(self, quantum: float = 0.25) -> None: ...
    def follow(self, now: float, wanting: collections.abc.Sequence[int]) -> None:
        """These sessions want the device, or have it. Decides how many lanes may run."""
    def forget(self, session: int) -> None:
        """Earlier measurements of the session do not hold any more."""
    def is_valid(self) -> str: ...
    def next_event(self) -> float | None:
        """Return when time alone changes something, or None."""
    def report(self, now: float, session: int, iterations: int, used: float) -> None:
        """The session did `iterations` since its last report; `used` are seconds of all its turns
        until now."""
    def runs(self, now: float, running: int) -> None:
        """`running` turns run from now on."""
    @property
    def finding(self) -> jupyter_gpushare._core.Reason | None: ...
    @property
    def hoped(self) -> int: ...
    @property
    def lanes(self) -> int: ...

def overflows(usage: jupyter_gpushare._core.LaneUsage) -> int:
    """Return the number of blocks that did not fit, since the process began."""

def paged(outcome: jupyter_gpushare._core.Outcome) -> int:
    """Return the bytes that went out and came in."""

def promoted_pages(usage: jupyter_gpushare._core.LaneUsage) -> int:
    """Return the number of pages that were promoted, since the process began."""

def think(cell: jupyter_gpushare._core.Cell) -> float:
    """Return the seconds from the cell before it."""

def waits(usage: jupyter_gpushare._core.CoLaneUsage) -> int:
    """Return the number of allocations that had to wait for the other process, so far."""
