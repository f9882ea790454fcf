"""The common part of callbacks for trainers: where to resume, and when to save and leave."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...checkpoints.store import Store, leave, newest_intact, none_is_intact, say, seconds_of
from ...checkpoints.termination import bear
from .agreement import Agreed, Agreement
from .gang import Gang
from .skew import skew_of


class Saves:
    """The checkpoints of a job whose training loop is another library's. Outside of a job nothing
    is kept."""

    def __init__(self, every: float) -> None:
        self._every = seconds_of(every)
        self._store = Store(os.environ) if "GPUSHARE_JOB" in os.environ else None
        self.resume_from: Path | None = None
        if self._store is not None:
            self.resume_from = self._newest(self._store)
            bear()
            self._store.announce()

    @cached_property
    def gang(self) -> Gang:
        """The ranks, once they know each other. All of them ask for it."""
        return Gang()

    @property
    def is_in_job(self) -> bool:
        return self._store is not None

    @staticmethod
    def _newest(store: Store) -> Path | None:
        """Return the newest checkpoint that is as it was written; None where there is none yet."""
        there = [*store.candidates()]
        if not there:
            return None
        found = newest_intact(there)
        if found == len(there):
            raise none_is_intact(there)
        return there[found]

    def begin(self, iteration: int, model: Any) -> None:
        """The loop begins. All ranks call it."""
        if self._store is not None:
            if self.gang.leads:
                self._store.announce(skew_of([model]))
                self._say_from(iteration)
            self._agreement = Agreement(self._store, self.gang, self._every, iteration)

    def _say_from(self, iteration: int) -> None:
        if iteration > 0:
            say(f"resumes after iteration {iteration}")
        elif self.resume_from is not None:
            say(
                "begins at iteration 0, although this job has a checkpoint: give `resume_from` of"
                " the callback to the trainer"
            )

    def after(self, iteration: int, of: float) -> Agreed:
        """Return what to do after this iteration, of about `of` in all. All ranks call it."""
        if self._store is None:
            return Agreed()
        is_known = math.isfinite(of) and of >= iteration
        return self._agreement.after(iteration, int(of) if is_known else 0)

    def part(self, iteration: int) -> Path:
        """Return a path that `commit` may move from; no other generation writes to it."""
        assert self._store is not None
        return self._store.part(iteration)

    def does(self, iteration: int, step: Callable[[], None]) -> bool:
        """Take a step of saving; return whether it succeeded, since the disk may be full."""
        try:
            step()
        except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError on a full disk
            say(f"iteration {iteration} cannot be saved, so the job computes on: {error}")
            return False
        return True

    def commit(
        self, iteration: int, save: Callable[[Path], None], agreed: Agreed, has_failed: bool = False
    ) -> None:
        """Keep what `save` puts into a folder, and leave if that is agreed. All ranks call it, and
        the first one saves. `has_failed`: this rank could not write what `save` takes."""
        assert self._store is not None
        have_failed = self.gang.most([has_failed])[0] > 0  # if not, the input of `save` is complete
        if self.gang.leads:
            commit = partial(self._store.commit, iteration, save)
            have_failed = have_failed or not self.does(iteration, commit)
            self._store.remove_part(iteration)  # if `save` has not taken it
        self._agreement.saved()
        if self.gang.most([have_failed])[0] == 0 and agreed.leaves:
            leave(iteration)
