"""Estimates the demand of a process from the memory that its recent iterations used."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ...wire.messages import Demand

WINDOW = 64  # iterations that a demand looks back
LARGEST_MARGIN = 5  # the margin for varying shapes is at most one 5th of the ephemeral bytes
LEARNINGS = 2  # iterations without a survivor until what was learned before them is forgotten


class Iteration(NamedTuple):
    """Bytes of one iteration. `footprint` is what it takes of the lane, holes included."""

    live: int  # at its end
    peak: int
    between: int  # the most since the iteration before
    footprint: int

    @property
    def ephemeral(self) -> int:
        return max(self.peak - self.live, self.footprint)

    @property
    def persistent(self) -> int:
        return max(self.live, self.between)


class Estimator:
    """Persistent is what is alive at boundaries or comes up between iterations; ephemeral is what
    an iteration has on top of its end, or takes of its lane. Both are the maximum of recent
    iterations. The first iteration is left out: it makes what the optimiser and the libraries keep
    for good.
    """

    def __init__(self) -> None:
        self.recent: deque[Iteration] = deque(maxlen=WINDOW)
        self.first_is_over = False
        self._to_forget = LEARNINGS

    @property
    def is_learning(self) -> bool:
        """The first iterations in the lane take more of it than any to come.

        Survivors are among their blocks; and the first of those without survivors finds the places
        of earlier survivors taken. So they are forgotten, and all before them.
        """
        return self._to_forget > 0

    def forget(self) -> None:
        """An iteration in the lane has ended, and nothing of it is alive there."""
        self._to_forget -= 1
        self.recent.clear()

    def add(self, iteration: Iteration, did_fit: bool) -> bool:
        """An iteration has ended; `did_fit`: its lane was large enough. Whether the demand is known
        since then, or is larger than it was."""
        is_first, self.first_is_over = not self.first_is_over, True
        if is_first:
            return False
        is_news = not did_fit or not self.recent
        self.recent.append(iteration)
        return is_news

    def needed(self) -> int:
        """The most bytes that an iteration took of the lane so far; 0 while that is unknown."""
        return max((iteration.ephemeral for iteration in self.recent), default=0)

    def demand(self, capacity: int) -> Demand | None:
        """On a device of `capacity` bytes; None until two iterations have ended."""
        recent = tuple(self.recent)
        if not recent:
            return None
        persistent = max(iteration.persistent for iteration in recent)
        return Demand(persistent, _ephemeral(recent, capacity - persistent), measured=True)


def _ephemeral(recent: tuple[Iteration, ...], room: int) -> int:
    """The most that an iteration needed, and as much again as that varied, within limits: the
    margin is only taken where there is room for it."""
    needs = [iteration.ephemeral for iteration in recent]
    most = max(needs)
    return most + max(0, min(most - min(needs), most // LARGEST_MARGIN, room - most))
