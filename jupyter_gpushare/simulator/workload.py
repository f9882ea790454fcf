"""Jobs to simulate: from a record, from a table of models, or from a generator.

Units are bytes and seconds. All random draws come from a seed, so the same seed gives the same
jobs.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .._core import Cell, Demand, Job, SqueezeOption
from ..errors import InvalidValue
from ..wire.demand import Curve
from .recorder import RecordedEvent

GAP_SECONDS = 0.5  # turns of a session with shorter gaps than this are one cell
# The least time of an iteration: with a shorter one, from a record, time would not pass.
SHORTEST_SECONDS = 1e-6
MEBIBYTE = 1 << 20
JOB_FIELDS = (
    "id",
    "cells",
    "demand",
    "user",
    "arrival",
    "weight",
    "priority",
    "declares",
    "load",
    "stays",
    "group",
    "devices",
    "bears",
    "curve",
)


class Workload(NamedTuple):
    """`capacity` is the capacity of each of the `devices`. Groups that are not in `groups` weigh
    1."""

    jobs: list[Job]
    capacity: int
    devices: int = 1
    groups: Mapping[str, float] = MappingProxyType({})


# --- a record ---------------------------------------------------------------------------------


@dataclass
class _Turns:
    """A cell, as it was recorded."""

    began: float
    ended: float = math.inf
    iterations: int = 0
    seconds: float = 0.0


@dataclass
class _Session:
    opened: RecordedEvent
    closed: float = math.inf
    persistent: int = 0
    ephemeral: int = 0
    declares: bool = False
    cells: list[_Turns] = field(default_factory=list)
    squeezed: dict[int, float] = field(default_factory=dict)  # bytes -> slowdown
    curve: Curve | None = None

    def take(self, event: RecordedEvent) -> None:
        if event.event == "opened":  # again, after a rest or on another connection
            self.closed = math.inf
        elif event.event == "requested":
            # A request that never became a turn was withdrawn or lost: this one begins a new cell.
            ended = self.cells[-1].ended if self.cells else math.inf
            if math.isinf(ended) or event.time - ended > GAP_SECONDS:
                self.cells.append(_Turns(event.time))
        elif event.event == "finished" and self.cells:
            self.cells[-1].ended = event.time
        elif event.event == "reported":
            self._report(event)
        elif event.event == "closed":
            self.closed = event.time

    def _report(self, event: RecordedEvent) -> None:
        self.persistent = max(self.persistent, event.persistent_bytes)
        self.ephemeral = max(self.ephemeral, event.ephemeral_bytes)
        self.declares = self.declares or event.declares
        self.curve = event.curve or self.curve
        if event.squeezed_bytes:
            self.squeezed[event.squeezed_bytes] = event.slowdown
        if not event.iterations and not event.device_seconds:
            return
        if not self.cells:  # its turn was too short to be recorded
            self.cells.append(_Turns(event.time, event.time))
        self.cells[-1].iterations += event.iterations
        self.cells[-1].seconds += event.device_seconds / event.slowdown

    def job(self, end: float) -> Job | None:
        """Return the job, or None if it has used nothing."""
        seen = [turns for turns in self.cells if turns.seconds >= SHORTEST_SECONDS]
        if not seen:
            return None
        ended = min(seen[-1].ended, end)
        return Job(
            self.opened.session,
            [
                _cell(turns, before)
                for turns, before in zip(
                    seen, [self.opened.time, *(turns.ended for turns in seen)], strict=False
                )
            ],
            demand=_demand(self.persistent, self.ephemeral, self.squeezed),
            user=self.opened.user,
            group=self.opened.group,
            arrival=self.opened.time,
            weight=self.opened.weight,
            priority=self.opened.priority,
            declares=self.declares,
            stays=max(0.0, self.closed - ended),
            devices=len(_devices(self.opened)),
            curve=_curve(self.curve, self.ephemeral),
        )


def _devices(opened: RecordedEvent) -> set[str]:
    return {*opened.gang} or {opened.device}


def _curve(curve: Curve | None, ephemeral: int) -> list[int]:
    """Return the curve in bytes; its peak is the demand of an iteration."""
    return [ephemeral * part // 100 for part in curve.percent] if curve else []


def _cell(turns: _Turns, before: float) -> Cell:
    """Return the cell. Work without iterations counts as one iteration."""
    count = max(1, min(turns.iterations, int(turns.seconds / SHORTEST_SECONDS)))
    return Cell(count, turns.seconds / count, max(0.0, turns.began - before))


def _demand(persistent: int, ephemeral: int, squeezed: Mapping[int, float]) -> Demand:
    """Return the demand, with the sizes to which the notebook was squeezed in the record. The
    record may have several measurements, so a size that took more time than a smaller one is left
    out."""
    options: list[SqueezeOption] = []
    for size in sorted(size for size in squeezed if size < ephemeral):
        if not options or squeezed[size] <= options[-1].slowdown:
            options.append(SqueezeOption(size, squeezed[size]))
    whole = [SqueezeOption(ephemeral, 1.0)] if options else []
    return Demand(persistent, ephemeral, options=[*whole, *reversed(options)])


def from_record(events: Sequence[RecordedEvent]) -> Workload:
    """Return a workload with the recorded cells, pauses between them, and devices.

    Raises InvalidValue for a record in which no session has used a device.
    """
    sessions: dict[str, _Session] = {}
    for event in events:
        if event.event == "opened":
            sessions.setdefault(event.session, _Session(event))
        if event.session in sessions:
            sessions[event.session].take(event)
    end = max((event.time for event in events), default=0.0)
    jobs = [job for session in sessions.values() if (job := session.job(end)) is not None]
    opened = [event for event in events if event.event == "opened"]
    used = {device for event in opened for device in _devices(event)}
    devices = [event for event in events if event.event == "device" and event.device in used]
    if not jobs or not devices:
        raise InvalidValue("no session has used a device in this record")
    groups = {event.group: event.weight for event in events if event.event == "group"}
    return Workload(jobs, min(device.capacity_bytes for device in devices), len(devices), groups)


def changed(job: Job, **changes: Any) -> Job:
    """Return a copy of the job with changes in some of the JOB_FIELDS."""
    return Job(**{**{name: getattr(job, name) for name in JOB_FIELDS}, **changes})


# --- squeezing ----------------------------------------------------------------------------------


def squeezable(job: Job, parts: Mapping[float, float]) -> Job:
    """Return a job that can be squeezed to these parts of its peak, each with its slowdown.

    Raises InvalidValue if less memory takes less time.
    """
    smaller = sorted(((part, parts[part]) for part in parts), reverse=True)
    if any(later < earlier for (_, earlier), (_, later) in pairwise(smaller)):
        raise InvalidValue("a smaller part of the peak has at least the slowdown of a larger one")
    demand = job.demand
    sizes = {int(part * demand.ephemeral): slowdown for part, slowdown in smaller}
    sizes.pop(demand.ephemeral, None)
    options = [SqueezeOption(size, slowdown) for size, slowdown in sizes.items()]
    if not options:
        return job
    whole = SqueezeOption(demand.ephemeral, 1.0)
    return changed(
        job, demand=Demand(demand.persistent, demand.ephemeral, options=[whole, *options])
    )


# --- tables of models -------------------------------------------------------------------------


class Model(NamedTuple):
    """The need of one iteration of a model; `iteration` is in seconds."""

    name: str
    persistent: int
    ephemeral: int
    iteration: float


def models(memory: Path, durations: Path) -> list[Model]:
    """Return the training jobs of `salus_mem_baseline.csv` with an iteration time in
    `salus_workloads.csv`. The time is from the longest run of each job, in which starting up weighs
    least."""
    with durations.open(newline="") as file:
        runs = [
            (row["name"].rpartition("_")[0], float(row["jct_s"]), int(row["iterations"]))
            for row in csv.DictReader(file)
        ]
    iteration = {name: seconds / count for name, seconds, count in sorted(runs, key=lambda r: r[1])}
    with memory.open(newline="") as file:
        return [
            Model(
                row["Network"],
                math.ceil(float(row["Persistent Mem (MB)"]) * MEBIBYTE),
                math.ceil(float(row["Peak"]) * MEBIBYTE),
                iteration[row["Network"]],
            )
            for row in csv.DictReader(file)
            if row["Network"] in iteration
        ]


def of_models(
    known: Sequence[Model], durations: Sequence[float], *, seed: int, gap: float = 0.0
) -> list[Job]:
    """Return one job for each duration (seconds alone on the device), of a model drawn uniformly
    from `known`. Pauses between arrivals are exponential with a mean of `gap` seconds. All jobs are
    one user's, since the published policies know no users, while every policy here shares the
    device between users."""
    draw = random.Random(seed)
    jobs, arrival = [], 0.0
    for number, seconds in enumerate(durations):
        model = draw.choice(known)
        count = max(1, round(seconds / model.iteration))
        jobs.append(
            Job(
                f"{number}-{model.name}",
                [Cell(count, model.iteration)],
                demand=Demand(model.persistent, model.ephemeral),
                user="u",
                arrival=arrival,
                declares=True,
            )
        )
        arrival += draw.expovariate(1 / gap) if gap else 0.0
    return jobs


# --- a generator ------------------------------------------------------------------------------


def generated(notebooks: int, *, seed: int, capacity: int = 16 << 30) -> Workload:
    """A day of notebooks that is assumed, not recorded; all draws are independent:

    - users: one for every two notebooks, drawn evenly, in two groups by turns; arrivals: Poisson,
      one in 5 minutes
    - cells of a notebook: geometric, 8 in the mean; pauses before them: lognormal, median 60 s,
      sigma 1.2
    - seconds of a cell alone: lognormal, median 15 s, sigma 1.6 (so the mean is 54 s); seconds of
      an iteration: log-uniform from 0.02 to 0.5
    - persistent bytes: lognormal, median 3 % of `capacity`, sigma 0.8; ephemeral: median 12 %,
      sigma 0.9; both cut at a third and a half of it
    - one in three declares its iterations; a notebook stays open for an hour after its last cell
    """
    draw = random.Random(seed)
    users = max(1, notebooks // 2)
    jobs, arrival = [], 0.0
    for number in range(notebooks):
        user = draw.randrange(users) + 1
        jobs.append(_notebook(draw, f"n{number + 1}", user, arrival, capacity))
        arrival += draw.expovariate(1 / 300)
    return Workload(jobs, capacity)


def _notebook(draw: random.Random, id: str, user: int, arrival: float, capacity: int) -> Job:
    iteration = math.exp(draw.uniform(math.log(0.02), math.log(0.5)))
    count = 1
    while draw.random() > 1 / 8:
        count += 1
    return Job(
        id,
        [_drawn_cell(draw, iteration) for _ in range(count)],
        demand=Demand(
            min(int(capacity * draw.lognormvariate(math.log(0.03), 0.8)), capacity // 3),
            min(int(capacity * draw.lognormvariate(math.log(0.12), 0.9)), capacity // 2),
        ),
        user=f"u{user}",
        group=f"g{(user + 1) % 2 + 1}",
        arrival=arrival,
        declares=draw.random() < 1 / 3,
        stays=3600.0,
    )


def _drawn_cell(draw: random.Random, iteration: float) -> Cell:
    seconds = draw.lognormvariate(math.log(15), 1.6)
    think = draw.lognormvariate(math.log(60), 1.2)
    return Cell(max(1, round(seconds / iteration)), iteration, think)
