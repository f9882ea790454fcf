"""Gangs of whole devices in virtual time. They yield at once, and compute without pauses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from jupyter_gpushare._core import ClusterQueue, Gang, GangGrant, GangRules


class GangTurn(NamedTuple):
    """A turn of the gang with this id; `devices` are numbers of devices, one for each host."""

    gang: str
    began: float
    ended: float
    devices: list[int]


class GangSimulation:
    """The queue of a cluster, and its gangs, in virtual seconds.

    `ended` has the end of each gang by its id, and `turns` has the finished turns in the order in
    which they ended.
    """

    def __init__(
        self,
        gangs: Sequence[Gang],
        hosts: Sequence[int],
        policy: str = "las",
        rules: GangRules | None = None,
    ) -> None:
        self.queue = ClusterQueue(hosts, policy, rules or GangRules())
        self.now = 0.0
        self.ended: dict[str, float] = {}
        self.turns: list[GangTurn] = []
        self._coming = deque(sorted(gangs, key=lambda gang: gang.arrival))
        self._ends: dict[str, float] = {}  # of those that run, if they go on

    def run(self, until: float = math.inf) -> None:
        """Run up to this time, or until nothing is left to happen. It may be called again, with a
        later time."""
        while (following := self._next_event()) <= until and following < math.inf:
            self.now = following
            self._end()
            while self._coming and self._coming[0].arrival <= self.now:
                self.queue.request(self.now, self._coming.popleft())
            self._decide()
        if until < math.inf:
            self.now = max(self.now, until)

    def _next_event(self) -> float:
        """Time passes in any case: events may be closer to each other than its numbers are."""
        of_queue = self.queue.next_event()
        events = [*self._ends.values(), math.inf if of_queue is None else of_queue]
        following = max(min(events), math.nextafter(self.now, math.inf))
        return min(following, self._coming[0].arrival) if self._coming else following

    def _end(self) -> None:
        soon = self.now + 1e-6
        for id in [id for id, end in self._ends.items() if end <= soon]:
            self._end_turn(id)
            self.ended[id] = self.now
            self.queue.close(self.now, id)

    def _decide(self) -> None:
        """All gangs that have to stop do so before another one starts."""
        yields: Sequence[str] = [""]
        while yields:
            decision = self.queue.assign(self.now)
            for grant in decision.grants:
                self._begin(grant)
            yields = decision.yields
            for id in yields:
                self._yield(id)

    def _begin(self, grant: GangGrant) -> None:
        progress = self.queue.progress(grant.gang)
        left = progress.gang.duration - progress.executed
        self._ends[grant.gang] = self.now + progress.resumes + left

    def _yield(self, id: str) -> None:
        self._end_turn(id)
        gang = self.queue.progress(id).gang
        self.queue.finish(self.now, id)
        self.queue.request(self.now, gang)

    def _end_turn(self, id: str) -> None:
        progress = self.queue.progress(id)
        self.turns.append(GangTurn(id, progress.granted, self.now, progress.holds))
        del self._ends[id]
