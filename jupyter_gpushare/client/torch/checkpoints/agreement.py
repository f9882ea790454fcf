"""The ranks of a job agree when to save and leave: all of them after the same iteration."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from torch.optim import Optimizer

from ...checkpoints.store import Store
from .gang import Gang

AGREE_SECONDS = 0.25  # between two iterations at which ranks agree whether to save, about
MOST_ITERATIONS = 50  # between them, as iterations may become slow
MOST_OPEN = 64  # iterations before the first step of an optimizer, for which a job waits to save
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

    def after(self, iteration: int, of: int, is_open: bool = False) -> Agreed:
        """Return what to do after this iteration, of `of` in all (0: unknown). All ranks call it.
        `is_open`: a save would lose what this rank has computed for a later iteration."""
        now = time.monotonic()
        self._computed += now - self._begun
        self._begun = now
        # One rank alone needs no number that others know.
        is_late = self._gang.size == 1 and now - self._looked >= AGREE_SECONDS
        if iteration < self._next_look and not is_late:
            return Agreed()
        agreed = self._look(iteration, now, is_open)
        if self._gang.leads and (agreed.leaves or now - self._told >= TELL_SECONDS):
            self._told = now
            self._store.tell(iteration, self._computed, of)
        return agreed

    def _look(self, iteration: int, now: float, is_open: bool) -> Agreed:
        """Agree, and set the iteration at which the ranks agree next, whose number they all
        know."""
        is_due = now - self._saved >= self._every
        mine = (self._store.is_asked(), is_due, now - self._looked, is_open)
        asked, due, took, are_open = self._gang.most(mine)
        each = took / max(1, iteration - self._looked_at)
        ahead = int(AGREE_SECONDS / each) if each > 0 else MOST_ITERATIONS
        if self._gang.size > 1:
            ahead = min(MOST_ITERATIONS, ahead)
        self._next_look = iteration + max(1, ahead)
        self._looked, self._looked_at = now, iteration
        if are_open and asked + due > 0:
            self._next_look = iteration + 1
            return Agreed()
        return Agreed(leaves=asked > 0, saves=asked + due > 0)

    def saved(self) -> None:
        """Begin the time to the next save. The time so far was no time of computing."""
        self._saved = self._begun = time.monotonic()

    def begins(self, iteration: int) -> None:
        """An epoch begins after this iteration: the time before it was no time of computing, and
        its iterations may be slower. All ranks call it."""
        self._begun = time.monotonic()
        self._next_look = min(self._next_look, iteration + 1)


class Steps:
    """The steps of kept optimizers. Between two of them a loop may accumulate gradients, which no
    state holds: it is open then. A loop that makes no steps is open now and then, but not for
    ever."""

    def __init__(self, kept: Iterable[Any]) -> None:
        noted = [self._note(one) for thing in kept for one in _optimizers(thing)]
        self._are_noted = any(noted)
        self._has_stepped = False
        self._since = 0  # iterations since the last step
        self._longest = 0  # iterations from one step to the next, at most; 0: not known
        self._is_whole = True  # all of these iterations are of one epoch

    def _note(self, optimizer: Optimizer) -> bool:
        """Note its steps; return whether that can be."""
        with suppress(AttributeError):  # a wrapper that is no whole optimizer itself
            optimizer.register_step_post_hook(self._steps)
            return True
        return False

    def _steps(self, *_: Any) -> None:
        self._has_stepped = True

    def begins(self) -> None:
        """An epoch begins: if the last one made no steps, its length says nothing."""
        self._is_whole = self._since == 0

    def are_open(self) -> bool:
        """Return whether gradients may be there after an iteration. Call it after each one."""
        self._since += 1
        if self._has_stepped:
            if self._is_whole:
                self._longest = max(self._longest, self._since)
            self._since, self._has_stepped, self._is_whole = 0, False, True
        return self._are_noted and self._since % (self._longest or MOST_OPEN) != 0


def _optimizers(thing: Any) -> list[Optimizer]:
    """Return a thing that is an optimizer, and the optimizers that it wraps."""
    inner = getattr(thing, "__dict__", {}).values()
    return [one for one in (thing, *inner) if isinstance(one, Optimizer)]
