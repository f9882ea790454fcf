"""Chooses the event of a training loop with the fewest bytes alive as its boundary."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

Candidate = tuple[str, int]  # the kind of event, and the id of its optimiser or module

RECURRENCES = 3  # profiling ends when a candidate has come this often: the first is an outlier
FORGET_AFTER = 16  # events of another candidate without the chosen one mean a new training
NEAR = 10  # a difference of 1/10 of the peak is near


class Measured(Protocol):
    """The interface that counts the bytes of live tensors."""

    def live(self) -> int: ...

    def peak(self) -> int: ...

    @property
    def seconds_to_move(self) -> float: ...


class BoundaryProfile:
    """Chooses the candidate with the fewest bytes alive. Until then each step is a boundary.

    A step is preferred to a `zero_grad` with only slightly fewer bytes if the time between the two
    exceeds the time to move survivors. The next batch is loaded in between, which then happens
    outside of the turn.
    """

    def __init__(self, memory: Measured, now: Callable[[], float] = time.monotonic) -> None:
        self._memory = memory
        self._now = now
        self._start()

    def _start(self) -> None:
        self._emptiest: Candidate | None = None
        self._near_step: Candidate | None = None  # it has only slightly more bytes
        self._stepped_at: float | None = None  # the last step; None after a `zero_grad`
        self._gap = math.inf  # seconds from a step to the `zero_grad` after it, the last time
        self._peak = 0
        self._live: dict[Candidate, int] = {}
        self._seen: Counter[Candidate] = Counter()

    @property
    def chosen(self) -> Candidate | None:
        is_near = self._near_step is not None and self._gap >= self._memory.seconds_to_move
        return self._near_step if is_near else self._emptiest

    def is_boundary(self, candidate: Candidate) -> bool:
        """Note the candidate; return whether an iteration that comes to it ends there."""
        is_boundary = self._is_boundary(candidate)
        self._measure_gap(candidate)  # after the choice, which counts until the next step
        return is_boundary

    def _is_boundary(self, candidate: Candidate) -> bool:
        chosen = self.chosen
        if candidate == chosen:
            self._seen.clear()
            return True
        if chosen is not None and self._has_changed(candidate):
            self._start()
            chosen = None
        if chosen is None:
            self._record(candidate)
            return candidate[0] == "step"
        return False

    def _measure_gap(self, candidate: Candidate) -> None:
        if candidate[0] == "step":
            self._stepped_at = self._now()
        elif self._stepped_at is not None:
            self._gap = self._now() - self._stepped_at
            self._stepped_at = None

    def is_last_step(self, candidate: Candidate) -> bool:
        """Return whether the chosen `zero_grad` follows this step: then the step was the last of
        the iteration, and no backward of live tensors follows."""
        chosen = self.chosen
        if chosen is None or chosen[0] != "zero_grad":
            return False
        cycle = list(self._live)  # in the order of an iteration
        return candidate == cycle[cycle.index(chosen) - 1]

    def _has_changed(self, candidate: Candidate) -> bool:
        self._seen[candidate] += 1
        is_new_step = candidate[0] == "step" and candidate not in self._live
        return is_new_step or self._seen[candidate] >= FORGET_AFTER

    def _record(self, candidate: Candidate) -> None:
        self._peak = max(self._peak, self._memory.peak())
        self._live[candidate] = self._memory.live()
        self._seen[candidate] += 1
        if self._seen[candidate] >= RECURRENCES:
            self._choose()
            self._seen.clear()

    def _choose(self) -> None:
        """Choose the candidate with the fewest bytes. Of equal ones choose the latest, so that all
        steps of a cycle are inside the iteration."""
        latest_first = list(reversed(self._live))
        self._emptiest = min(latest_first, key=self._live.__getitem__)
        steps = [candidate for candidate in latest_first if candidate[0] == "step"]
        step = min(steps, key=self._live.__getitem__, default=self._emptiest)
        if self._live[step] <= self._live[self._emptiest] + self._peak // NEAR:
            self._near_step = step
