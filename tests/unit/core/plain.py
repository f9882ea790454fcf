"""Virtual time, one iteration after the other: a plain version of what `_core.Simulation` does.

The simulation in C++ is compared with this one. A test may also look at the scheduler, and change
something, in the middle of a run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from jupyter_gpushare._core import Decision, Demand, Rules, SessionSpec

from .scheduler import Scheduler

GB = 10**9


@dataclass
class Job:
    """A notebook: cells of `cell` iterations, each `iteration` seconds, `think` seconds apart.

    If it is `random`, `cell` and `think` are means. An interactive one says when cells begin and
    end.
    """

    id: str
    user: str = "u"
    group: str = ""
    start: float = 0.0
    iteration: float = 0.05
    cell: int = 10**9
    cells: int = 1
    think: float = 0.0
    weight: float = 1.0
    priority: int = 0
    demand: Demand = field(default_factory=lambda: Demand(GB // 10, GB))
    declares: bool = False
    interactive: bool = False
    shares: bool = False
    random: Random | None = None

    turn: int = 0
    takes: float = 0.0  # the iteration that goes on
    left_in_cell: int = 0
    cells_done: int = 0
    seconds: float = 0.0
    asked: bool = False
    done_at: float | None = None
    grants: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    pressed: float | None = None  # Shift and Enter, and no progress since
    first_progress: list[float] = field(default_factory=list)  # seconds after that

    @property
    def left(self) -> int:
        return self.left_in_cell + (self.cells - self.cells_done - 1) * self.cell


class Simulation:
    """Runs jobs until `until`; after each event the scheduler must be valid."""

    def __init__(
        self,
        jobs: list[Job],
        policy: str = "fair",
        capacity: int = 16 * GB,
        rules: Rules | None = None,
        crowded: float = 1.0,
    ) -> None:
        """While another turn runs, each iteration takes `crowded` times as long."""
        self.crowded = crowded
        self.running: set[str] = set()
        self.jobs = {job.id: job for job in jobs}
        self.scheduler = Scheduler(capacity, policy, rules or Rules())
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        for job in jobs:
            self.at(job.start, lambda job=job: self._open(job))

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), event))

    def run(self, until: float) -> Simulation:
        while self._events and self._events[0][0] <= until:
            time, _, event = heapq.heappop(self._events)
            self._wake_scheduler(time)
            self.now = time
            event()
            self._look()
        self._wake_scheduler(until)
        self.now = until
        return self

    def share(self, id: str) -> float:
        """Return device seconds of a job so far, as a part of all that were used."""
        return self.jobs[id].seconds / sum(job.seconds for job in self.jobs.values())

    def enact(self, decision: Decision) -> None:
        for grant in decision.grants:
            job = self.jobs[grant.session]
            assert grant.turn == job.turn
            job.asked = False
            job.grants.append(self.now)
            self.running.add(job.id)
            self._iterate(job)
        for asked in decision.yields:
            job = self.jobs[asked.session]
            assert asked.turn == job.turn
            assert not job.asked, "a yield is sent once per turn"
            job.asked = True

    def _iterate(self, job: Job) -> None:
        job.takes = job.iteration * (self.crowded if len(self.running) > 1 else 1)
        self.at(self.now + job.takes, lambda turn=job.turn: self._boundary(job, turn))

    def close(self, id: str) -> None:
        self.running.discard(id)
        self.jobs[id].turn += 1  # its present activity is of no account any more
        self.enact(self.scheduler.close(self.now, id))

    def _wake_scheduler(self, until: float) -> None:
        while (time := self.scheduler.next_event(self.now)) is not None and time <= until:
            assert time > self.now, "next_event must not be in the past"
            self.now = time
            self.enact(self.scheduler.assign(self.now))

    def _look(self) -> None:
        assert self.scheduler.is_valid() == ""

    def _open(self, job: Job) -> None:
        spec = SessionSpec(
            job.user,
            group=job.group,
            weight=job.weight,
            priority=job.priority,
            demand=job.demand,
            remaining_iterations=job.cell * job.cells if job.declares else None,
            busy=not job.interactive,
            shares=job.shares,
        )
        self.enact(self.scheduler.open(self.now, job.id, spec))
        self._begin_cell(job)

    def _begin_cell(self, job: Job) -> None:
        if job.id not in self.scheduler:
            return
        job.left_in_cell = job.cell
        if job.random:
            job.left_in_cell = job.random.randint(1, 2 * job.cell - 1)
        if job.interactive:
            self.enact(self.scheduler.set_busy(self.now, job.id, True))
        job.pressed = self.now
        self._request(job)

    def _request(self, job: Job) -> None:
        job.turn += 1
        self.enact(self.scheduler.request(self.now, job.id, job.turn))

    def _boundary(self, job: Job, turn: int) -> None:
        if turn != job.turn:
            return  # closed meanwhile
        if job.pressed is not None:
            job.first_progress.append(self.now - job.pressed)
            job.pressed = None
        job.seconds += job.takes
        job.left_in_cell -= 1
        parts = job.asked or job.left_in_cell == 0
        if parts:
            self.running.discard(job.id)
            self.enact(self.scheduler.finish(self.now, job.id, turn))
        self._report(job)
        if job.left_in_cell == 0:
            self._end_cell(job)
        elif parts:
            self._request(job)
        else:
            self._iterate(job)

    def _report(self, job: Job) -> None:
        left = job.left if job.declares else None
        self.enact(self.scheduler.report(self.now, job.id, 1, job.demand, left))

    def _end_cell(self, job: Job) -> None:
        if job.interactive:
            self.enact(self.scheduler.set_busy(self.now, job.id, False))
        job.cells_done += 1
        job.ended.append(self.now)
        if job.cells_done < job.cells:
            think = job.random.expovariate(1 / job.think) if job.random else job.think
            self.at(self.now + think, lambda: self._begin_cell(job))
        else:
            job.done_at = self.now
