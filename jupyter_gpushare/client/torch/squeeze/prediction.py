"""Predicts the cost of each budget from one recorded iteration in which no entry left memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from ....wire.demand import SqueezeOption

POINTS = 8  # budgets that are foretold, beside the peak itself
HOLES = 1.05  # a lane's size over the bytes that are alive in it
HOOK_SECONDS = 2e-5  # that the hooks take for an event in which nothing moves


class TapeStep(NamedTuple):
    """An event of the recorded iteration. Sizes are bytes.

    `used` are the bytes that the iteration has then, and `need` the most beside them until the next
    event. An entry ends when autograd lets it go; of that event only the `ordinal` counts.
    """

    kind: str  # save, take, end
    ordinal: int
    size: int = 0
    used: int = 0
    need: int = 0
    seconds: float | None = None  # to recompute the entry; None: there is no recipe
    beside: int = 0  # bytes that recomputing takes beside, at most
    held: tuple[int, ...] = ()  # entries that have to stay meanwhile


class Cost(NamedTuple):
    """An iteration under a budget: its peak in bytes, and the seconds that it takes longer."""

    peak: int
    seconds: float


class _Replay:
    """Applies the rules of the cache to a tape. `limit` is in bytes, `pace` in seconds per byte."""

    def __init__(self, limit: float, pace: float) -> None:
        self._limit, self._pace = limit, pace
        self._sizes: dict[int, int] = {}  # of all entries that are alive
        self._here: list[int] = []  # whose bytes are in memory
        self._absent = 0  # bytes that are elsewhere
        self._recipes: dict[int, float] = {}
        self._written: set[int] = set()
        self.peak = 0
        self.seconds = 0.0
        self.floor = 0  # the most that was needed after all entries had left that may leave

    def play(self, step: TapeStep) -> None:
        if step.kind == "end":
            return self._end(step.ordinal)
        if step.kind == "save":
            self._save(step)
        elif step.ordinal in self._sizes and step.ordinal not in self._here:
            self._bring(step)
        self.seconds += HOOK_SECONDS
        self._fit(step.used + step.need, {step.ordinal, *step.held})
        return None

    def _fit(self, needed: int, spared: set[int]) -> None:
        used = self._shrink(needed, spared)
        self.peak = max(self.peak, used)
        if used > self._limit:
            self.floor = max(self.floor, used)

    def _save(self, step: TapeStep) -> None:
        if step.ordinal not in self._sizes:
            self._sizes[step.ordinal] = step.size
            insort(self._here, step.ordinal)
            if step.seconds is not None and step.seconds < 2 * step.size * self._pace:
                self._recipes[step.ordinal] = step.seconds

    def _bring(self, step: TapeStep) -> None:
        size, seconds = self._sizes[step.ordinal], self._recipes.get(step.ordinal)
        if seconds is not None:
            self._fit(step.used + step.beside, {*step.held})
        self._absent -= size
        insort(self._here, step.ordinal)
        self.seconds += size * self._pace if seconds is None else seconds

    def _shrink(self, used: int, spared: set[int]) -> int:
        """Let entries leave until the need fits. `used` is the need with all entries in memory;
        return the need without those that have left."""
        for ordinal in tuple(self._here):
            if used - self._absent <= self._limit:
                break
            if ordinal not in spared:
                self._leave(ordinal)
        return used - self._absent

    def _leave(self, ordinal: int) -> None:
        self._here.remove(ordinal)
        self._absent += self._sizes[ordinal]
        if ordinal not in self._recipes and ordinal not in self._written:
            self._written.add(ordinal)
            self.seconds += self._sizes[ordinal] * self._pace

    def _end(self, ordinal: int) -> None:
        size = self._sizes.pop(ordinal, 0)
        if ordinal in self._here:
            self._here.remove(ordinal)
        else:
            self._absent -= size


def foretell(tape: Sequence[TapeStep], budget: float, pace: float) -> Cost:
    """Return the cost of an iteration within `budget` bytes, or within the least possible budget if
    that is larger. `pace` is that of the slower tier in seconds per byte."""
    replay = _Replay(budget, pace)
    for step in tape:
        replay.play(step)
    if replay.floor > budget:  # entries do not leave for a budget that cannot be held
        return foretell(tape, replay.floor, pace)
    return Cost(replay.peak, replay.seconds)


def options_of(tape: Sequence[TapeStep], seconds: float, pace: float) -> tuple[SqueezeOption, ...]:
    """Return how far an iteration of that many seconds can be squeezed, from the largest option to
    the floor. Each option has a smaller peak and a larger slowdown than the one before it."""
    most, least = foretell(tape, float("inf"), pace).peak, foretell(tape, 0, pace).peak
    budgets = [most - (most - least) * (n + 1) // POINTS for n in range(POINTS)]
    options: list[SqueezeOption] = []
    for budget in budgets:
        cost = foretell(tape, budget, pace)
        slowdown = max(1 + cost.seconds / seconds, options[-1].slowdown if options else 1.0)
        size = int(cost.peak * HOLES)
        if size < (options[-1].bytes if options else most):
            options.append(SqueezeOption(size, slowdown))
    return tuple(options)
