"""The ranks of a job agree when to save and leave: all of them after the same iteration."""

from __future__ import annotations

import time
from typing import NamedTuple

from ...checkpoints.store import Store
from .gang import Gang

AGREE_SECONDS = 0.25  # between two iterations at which ranks agree whether to save, about
MOST_ITERATIONS = 1000  # between them
TELL_SECONDS = 0.5


class Agreed(NamedTuple):
    """The common act of all ranks after an iteration: to save and leave, to save, or neither."""

    leaves: bool = False
    saves: bool = False


class Agreement:
    """At the same iterations all ranks look whether the job is asked to yield. The first rank
    reports the progress of the job."""

    def __init__(self, store: Store, gang: Gang, every: float, iteration: int) -> None:
        """`every`: seconds between two saves."""
        self._store = store
        self._gang = gang
        self._every = every
        self._computed = 0.0
        self._saved = self._told = self._looked = self._begun = time.monotonic()
        self._looked_at = self._next_look = iteration

    def after(self, iteration: int, of: int) -> Agreed:
        """Return what to do after this iteration, of `of` in all (0: unknown). All ranks call
        it."""
        now = time.monotonic()
        self._computed += now - self._begun
        self._begun = now
        if iteration < self._next_look:
            return Agreed()
        agreed = self._look(iteration, now)
        if self._gang.leads and (agreed.leaves or now - self._told >= TELL_SECONDS):
            self._told = now
            self._store.tell(iteration, self._computed, of)
        return agreed

    def _look(self, iteration: int, now: float) -> Agreed:
        """Agree, and set the iteration at which the ranks agree next, whose number they all
        know."""
        mine = (self._store.is_asked(), now - self._saved >= self._every, now - self._looked)
        asked, due, took = self._gang.most(mine)
        each = took / max(1, iteration - self._looked_at)
        ahead = int(AGREE_SECONDS / each) if each > 0 else MOST_ITERATIONS
        self._next_look = iteration + min(MOST_ITERATIONS, max(1, ahead))
        self._looked, self._looked_at = now, iteration
        return Agreed(leaves=asked > 0, saves=asked + due > 0)

    def saved(self) -> None:
        """Begin the time to the next save. The time so far was no time of computing."""
        self._saved = self._begun = time.monotonic()

    def begins(self) -> None:
        """An iteration begins: the time before it was no time of computing."""
        self._begun = time.monotonic()
