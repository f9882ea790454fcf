"""The use and the waits of a session, and how much of them it has reported to the broker."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...wire.demand import Curve, Demand
from ...wire.messages import Report, Wait
from .. import progress
from ..process_groups import Membership
from ..progress import Progress
from .memory import Memory

# A share of the time between two reports, as in csrc/simulation/simulation.cpp.
AT_END_OF_TURN = 0.1
CURVE_SECONDS = 5.0  # between two curves that are reported
CURVE_CHANGE = 0.05  # of the peak, or of the seconds: a smaller one is not worth a report


class Owner(Protocol):
    """The session, as its parts see it."""

    memory: Memory
    on_wait: Callable[[Wait], None]
    # Called at the end of each wait, with its seconds and those of all turns so far.
    on_waited: Callable[[float, float], None]
    on_trouble: Callable[[str], None]
    # This lock is taken before the link's. While a thread has it, no other begins an iteration.
    entering: Any
    inside: bool  # an iteration is open
    iterations: int  # that have ended
    # It is called with `entering`, and closes the open iteration if no thread computes in it.
    close_if_idle: Callable[[], None]


class Usage:
    """The iterations and seconds of one session, and its reports. Times are of `time.monotonic`."""

    def __init__(
        self, owner: Owner, group: Membership, report_seconds: float, remaining: int | None
    ) -> None:
        self._owner = owner
        self._group = group
        self._report_seconds = report_seconds
        self.iterations = 0
        self.device_seconds = 0.0
        self.waited_seconds = 0.0
        self.since = 0.0  # when this turn, or this wait, began
        self._waited_before = 0.0  # seconds of the waits before this one
        self._reported = 0
        self._told: Progress | None = None
        self._reported_at = -math.inf
        self._curve: Curve | None = None  # the one that was reported last
        self._curve_at = -math.inf
        self._first_iteration = 0  # the number of iterations before the declared ones
        self._last_iteration = _plus(0, remaining)  # the number of the last declared iteration

    # --- the clock of this turn, or of this wait ---------------------------------------------

    def start_clock(self) -> None:
        """Begin a wait."""
        self.since = time.monotonic()
        self._waited_before = self.waited_seconds

    def stop_wait(self) -> None:
        """End the wait; the turn begins now, if the wait was for one."""
        now = time.monotonic()
        self.waited_seconds += now - self.since
        self.since = now

    def stop_turn(self, now: float | None = None) -> None:
        self.device_seconds += (now or time.monotonic()) - self.since

    def lasted(self) -> float:
        """Return the seconds of this turn, or of this wait, so far."""
        return time.monotonic() - self.since

    def tell_wait(self, turn: int, why: str) -> None:
        """Tell the user that the session waits for something other than a turn, and tries again."""
        self._owner.on_wait(Wait(turn, 1, self.lasted(), f"{why}; trying again"))

    def tell_waited(self) -> None:
        """Tell the user of a wait by the growth of `waited_seconds`, the figure that `status`
        shows."""
        self._owner.on_waited(self.waited_seconds - self._waited_before, self.device_seconds)

    # --- iterations and reports -------------------------------------------------------------

    def declare(self, remaining: int | None) -> None:
        """Set how many iterations are still to come; None if that is not known."""
        self._first_iteration = self.iterations
        self._last_iteration = _plus(self.iterations, remaining)

    def measure_anew(self) -> None:
        """Measure the demand again: a wait has ended without a turn, and the user may free memory
        before the next one."""
        self._owner.memory.measure_anew()

    def progress(self) -> Progress | None:
        """Return the progress of the declared loop, or of the one with a bar; None without
        either."""
        if (last := self._last_iteration) is not None:
            return Progress(max(0, last - self.iterations), last - self._first_iteration)
        return progress.from_tqdm()

    @property
    def is_reported(self) -> bool:
        """Whether the broker knows all iterations, and the loop as it is now."""
        return (self._reported, self._told) == (self.iterations, self.progress())

    def was_registered(self) -> None:
        """Note that the registration has reported the iterations, and not the curve."""
        self._reported, self._told = self.iterations, self.progress()
        self._curve, self._curve_at = None, -math.inf  # a new broker does not know it

    @property
    def has_news(self) -> bool:
        """Whether the demand has to be reported at once."""
        return self._owner.memory.has_news

    def owes_report(self, now: float, holding: bool) -> bool:
        """Whether a report is due: in the middle of a long turn, else at its end. The first
        iteration and news of the demand are due at once."""
        if holding and self._reported_at > -math.inf:
            seconds = self._report_seconds
            is_due = now >= self._reported_at + seconds and now >= self.since + seconds
        else:
            is_due = now >= self._reported_at + AT_END_OF_TURN * self._report_seconds
        return is_due or self._owner.memory.has_news

    def report(self, now: float, holding: bool) -> Report:
        done = self.iterations - self._reported
        self._reported, self._told = self.iterations, self.progress()
        self._reported_at = now
        left, loop = self._told or (None, None)
        squeezing = self._owner.memory.squeezing
        return Report(done, self.demand(holding), left, self._new_curve(now), loop, squeezing)

    def _new_curve(self, now: float) -> Curve | None:
        if now < self._curve_at + CURVE_SECONDS:
            return None
        curve = self._owner.memory.curve()
        if curve is None or (self._curve is not None and _is_near(curve, self._curve)):
            return None
        self._curve, self._curve_at = curve, now
        return curve

    def demand(self, holding: bool) -> Demand:
        """Return the demand in bytes. If a member of a process group computes without a turn, and
        so outside of the lane, all its memory is persistent: no other session can use that room."""
        demand = self._owner.memory.demand()
        if not self._group.joins or holding:
            return demand
        whole = demand.persistent_bytes + demand.ephemeral_bytes
        return Demand(whole, 0, demand.measured)


def _is_near(one: Curve, other: Curve) -> bool:
    sizes = [(curve.seconds, curve.peak_bytes) for curve in (one, other)]
    parts = zip(one.percent, other.percent, strict=True)
    return all(
        math.isclose(a, b, rel_tol=CURVE_CHANGE) for a, b in zip(*sizes, strict=True)
    ) and all(abs(a - b) <= 100 * CURVE_CHANGE for a, b in parts)


def _plus(done: int, more: int | None) -> int | None:
    return None if more is None else done + more
