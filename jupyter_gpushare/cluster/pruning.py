"""Removes old records: finished jobs with their checkpoints and keys, events, nodes that the engine
no longer names and, last, the sums of GPU time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from .engines.engine import Node
from .hands.hands import Hands
from .journal import Journal

NEVER = float("-inf")
DAY_SECONDS = 86_400.0
PRUNE_SECONDS = 3600.0


class Retention(NamedTuple):
    """How long records are kept, in days; 0: without limit."""

    jobs: float
    uses: float


ALL = Retention(jobs=0, uses=0)


class Pruning:
    """Each method raises the errors of the journal."""

    def __init__(self, journal: Journal, hands: Hands, keep: Retention) -> None:
        self._journal, self._hands, self._keep = journal, hands, keep
        self._pruned = NEVER  # when events, nodes and uses were last pruned

    def forget_one(self, now: float) -> None:
        """Remove one old job; only one, since a large checkpoint takes time. Files that cannot be
        removed stay."""
        if (job := self._journal.over_before(before(now, self._keep.jobs))) is not None:
            with suppress(OSError):
                self._hands.of(job.user).forget(job.directory)
            self._journal.forget(job.id)

    def prune(self, now: float, nodes: Mapping[str, Node], held: Collection[str]) -> bool:
        """Remove old events, uses and nodes, if it is time; return whether it was. The engine names
        these `nodes`, and jobs hold GPUs of those in `held`."""
        if 0 <= now - self._pruned < PRUNE_SECONDS:
            return False
        self._pruned = now
        self._journal.see_nodes(now, nodes)
        old, old_uses = before(now, self._keep.jobs), before(now, self._keep.uses)
        self._journal.remove_old(old, old_uses, held)
        return True


def before(now: float, days: float) -> float:
    return now - days * DAY_SECONDS if days else NEVER
