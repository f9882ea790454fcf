"""Kinds of iterations: a notebook may train in several ways by turns, and each needs something
else."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RECENT = 3  # iterations of a kind whose needs count; the first one of a training is an outlier
REMEMBERED = 12  # iterations of all kinds


class Event(NamedTuple):
    """Autograd saves a tensor of an entry (`is_saved`), or takes it back."""

    is_saved: bool
    ordinal: int  # of the entry in the iteration


class Needs:
    """What one iteration has needed."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of its entries, in bytes
        self.most: dict[Event, float] = {}  # of each event, as multiples of its entry's size
        self.floor = 0  # bytes that were needed although all that may leave had left

    def note(self, event: Event, need: float) -> None:
        if need >= self.most.get(event, 0.0):
            self.most[event] = need

    def has(self, number: int, size: int) -> bool:
        """Whether its entry of that number has that many bytes."""
        return number < len(self.sizes) and self.sizes[number] == size

    def has_share(self, number: int, size: int, first: int) -> bool:
        """Whether its entry of that number has the share of its first one that `size` has of
        `first`."""
        return number < len(self.sizes) and self.sizes[number] * first == size * self.sizes[0]


class Kinds:
    """The latest iterations, of which those count that are of the open one's kind.

    So far these have saved entries of the same sizes; if none has, of sizes in the same
    proportions, since batches vary; if none has, all count. For the floor the latest one of the
    kind counts, and the latest of all: what the one needs anyway the next one may take.
    """

    def __init__(self) -> None:
        self._latest: deque[Needs] = deque(maxlen=REMEMBERED)
        self.open = Needs()
        self.begin()

    def begin(self) -> None:
        if self.open.sizes:  # else it tells nothing
            self._latest.append(self.open)
        self.open = Needs()
        self._same = self._alike = [*self._latest]
        self._choose()

    def _choose(self) -> None:
        latest = [*self._latest]
        self._chosen = (self._same or self._alike or latest)[-RECENT:]
        self._floor = max((one.floor for one in (*self._chosen[-1:], *latest[-1:])), default=0)

    def add(self, size: int) -> None:
        """The open iteration saves one more entry."""
        number, before = len(self.open.sizes), (self._same, self._alike)
        self.open.sizes.append(size)
        first = self.open.sizes[0]
        self._same = [one for one in self._same if one.has(number, size)]
        self._alike = [one for one in self._alike if one.has_share(number, size, first)]
        if before != (self._same, self._alike):
            self._choose()

    def need(self, event: Event) -> float | None:
        """Return the most that the event has needed; None if it is not known."""
        known = [one.most[event] for one in (self.open, *self._chosen) if event in one.most]
        return max(known, default=None)

    @property
    def floor(self) -> int:
        return max(self._floor, self.open.floor)
