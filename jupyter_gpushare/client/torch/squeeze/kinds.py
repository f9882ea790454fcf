"""Kinds of iterations: a notebook may train in several ways by turns, each with other needs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RECENT = 3  # iterations of a kind whose needs count, since the first is an outlier
REMEMBERED = 12  # iterations of all kinds


class SaveEvent(NamedTuple):
    """Autograd saves a tensor of an entry (`is_saved`), or takes it back."""

    is_saved: bool
    ordinal: int  # of the entry in the iteration
    times: int = 0  # that it has been saved before


class Needs:
    """The need of one iteration."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of its entries, in bytes
        self.most: dict[SaveEvent, float] = {}  # of each event, as multiples of its entry's size
        self.floor = 0  # bytes that were needed after all entries had left that may leave

    def note(self, event: SaveEvent, need: float) -> None:
        if need >= self.most.get(event, 0.0):
            self.most[event] = need

    def has(self, number: int, size: int, first: int) -> bool:
        """Whether its entry of that number has that many bytes."""
        return number < len(self.sizes) and self.sizes[number] == size

    def has_share(self, number: int, size: int, first: int) -> bool:
        """Whether its entry of that number is to its first entry as `size` is to `first`."""
        return number < len(self.sizes) and self.sizes[number] * first == size * self.sizes[0]

    def is_any(self, number: int, size: int, first: int) -> bool:
        return True


MEASURES = Needs.has, Needs.has_share, Needs.is_any  # tests for one kind, the strictest first


class Kinds:
    """The latest iterations. Those of the open iteration's kind count.

    They have saved entries of the same sizes so far. If no iteration has, sizes in the same
    proportions are enough, since batches vary. If there are none either, all iterations count. The
    floor is the larger one of the latest iteration of the kind and the latest of all, since the
    next iteration may take what either needed anyway.
    """

    def __init__(self) -> None:
        self._latest: deque[Needs] = deque(maxlen=REMEMBERED)
        self.open = Needs()
        self._chosen: list[Needs] = []
        self.begin()

    def begin(self) -> None:
        if self.open.sizes:  # else it tells nothing
            self._latest.append(self.open)
        self.open = Needs()
        self._choose()

    def _choose(self) -> None:
        sizes, latest = self.open.sizes, [*self._latest]
        for measure in MEASURES:
            self._is_of_kind = measure
            of_kind = [one for one in latest if self._fits(one, sizes)]
            if of_kind:
                break
        self._chosen = of_kind[-RECENT:]
        self._floor = max((one.floor for one in (*self._chosen[-1:], *latest[-1:])), default=0)

    def _fits(self, one: Needs, sizes: list[int]) -> bool:
        return all(self._is_of_kind(one, *each, sizes[0]) for each in enumerate(sizes))

    def add(self, size: int) -> None:
        """Note one more entry of the open iteration. This runs for each entry, so it looks only at
        the iterations that count."""
        sizes = self.open.sizes
        sizes.append(size)
        number, first, is_of_kind = len(sizes) - 1, sizes[0], self._is_of_kind
        for one in self._chosen:
            if not is_of_kind(one, number, size, first):
                return self._choose()
        return None

    def need(self, event: SaveEvent) -> float | None:
        """Return the most that the event has needed; None if it is not known."""
        known = [one.most[event] for one in (self.open, *self._chosen) if event in one.most]
        return max(known, default=None)

    @property
    def floor(self) -> int:
        return max(self._floor, self.open.floor)
