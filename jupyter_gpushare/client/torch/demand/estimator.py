"""Estimates the demand of a process from the memory that its recent iterations used."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from ....wire.demand import Demand

WINDOW = 64  # recent iterations that a demand takes into account
LARGEST_MARGIN = 5  # the margin for varying shapes is at most 1/5 of the ephemeral bytes
LEARNINGS = 2  # iterations without a survivor after which earlier ones are forgotten


class Iteration(NamedTuple):
    """The bytes of one iteration. `footprint` is its part of the lane, including holes."""

    live: int  # alive at its end
    peak: int
    between: int  # the most since the previous iteration
    footprint: int

    @property
    def ephemeral(self) -> int:
        return max(self.peak - self.live, self.footprint)

    @property
    def persistent(self) -> int:
        return max(self.live, self.between)

    def limited(self, size: float) -> Iteration:
        """Return this iteration with at most `size` ephemeral bytes."""
        if self.ephemeral <= size:
            return self
        most = int(size)
        peak, footprint = min(self.peak, self.live + most), min(self.footprint, most)
        return self._replace(peak=peak, footprint=footprint)


class Estimator:
    """Estimates persistent and ephemeral bytes, each as the maximum of recent iterations.

    Memory that is alive at boundaries or appears between iterations is persistent. The ephemeral
    memory of an iteration is its peak above the live bytes at its end, or its part of the lane. The
    first iteration is left out: it allocates what the optimiser and the libraries keep for good.
    """

    def __init__(self) -> None:
        self.recent: deque[Iteration] = deque(maxlen=WINDOW)
        self.first_is_over = False
        self.begins_anew = False  # the next iteration replaces all recent ones
        self._to_forget = LEARNINGS
        self._unlimited: deque[Iteration] | None = None  # recent ones, before there was a limit

    @property
    def is_learning(self) -> bool:
        """Whether the first iterations in the lane go on; they take more of it than later ones.

        Their blocks include survivors, and the first iteration without survivors finds the
        addresses of earlier survivors taken. So these iterations and all before them are forgotten.
        """
        return self._to_forget > 0

    def forget(self) -> None:
        """Forget all iterations: one in the lane has ended, and nothing of it is alive there."""
        self._to_forget -= 1
        self.recent.clear()

    def limit(self, size: float) -> None:
        """Note that iterations need at most `size` bytes from now on. If `size` is infinite, the
        iterations before the first limit count again."""
        if size == math.inf:
            self.recent, self._unlimited = self._unlimited or self.recent, None
            return
        if self._unlimited is None:
            self._unlimited = self.recent
        self.recent = deque([one.limited(size) for one in self.recent], maxlen=WINDOW)

    def add(self, iteration: Iteration, did_fit: bool) -> bool:
        """Add an iteration that has ended; `did_fit` tells that its lane was large enough. Return
        whether the demand is known now, or is larger than before."""
        is_first, self.first_is_over = not self.first_is_over, True
        if is_first:
            return False
        if self.begins_anew:
            self.begins_anew = False
            self.recent.clear()
        is_news = not did_fit or not self.recent
        self.recent.append(iteration)
        return is_news

    def needed(self) -> int:
        """Return the most bytes that a recent iteration took of the lane; 0 while that is
        unknown."""
        return max((iteration.ephemeral for iteration in tuple(self.recent)), default=0)

    def demand(self, room: int, kept: int = 0) -> Demand | None:
        """Return the demand of a process that has at least `kept` bytes, on a device where `room`
        bytes are not another's; None until two iterations have ended."""
        recent = tuple(self.recent)
        if not recent:
            return None
        persistent = max(kept, *(iteration.persistent for iteration in recent))
        return Demand(persistent, _ephemeral(recent, room - persistent), measured=True)

    def unlimited(self, demand: Demand, room: int) -> int:
        """Return the ephemeral bytes of that demand without a limit."""
        before = tuple(self._unlimited or ())
        if not before:
            return demand.ephemeral_bytes
        return max(self.needed(), _ephemeral(before, room - demand.persistent_bytes))


def _ephemeral(recent: tuple[Iteration, ...], room: int) -> int:
    """Return the most bytes that an iteration needed, plus a margin: the variation of the need, but
    at most a fifth of it and at most the remaining room."""
    needs = [iteration.ephemeral for iteration in recent]
    most = max(needs)
    return most + max(0, min(most - min(needs), most // LARGEST_MARGIN, room - most))
