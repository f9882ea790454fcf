"""A queue of the core with the names of the cluster: jobs are its gangs, and nodes are its
hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..._core import ClusterQueue, Gang, GangProgress, GangRules
from ...errors import DoesNotFit
from ...format import counted, number_of_gpus
from ...wire.jobs import Gpus
from ..jobs import JobRecord

# The fields of a gang that the journal keeps. Its GPUs, and whether it waits, follow from its job.
KEPT = (
    *("queue", "ticket", "executed", "run", "waited", "granted", "served", "resumes", "started"),
    *("keeps_free", "kept_free", "waited_in_all", "promoted"),
)
ENDLESS = 1e9  # seconds; the length of a job is unknown


class Decision(NamedTuple):
    """Jobs to start, with their GPUs of each node, and jobs to ask to yield."""

    starts: Mapping[str, Mapping[str, Gpus]]
    yields: Iterable[str]


class Line(NamedTuple):
    """The positions of waiting jobs, from 1 on; a job whose start was refused has none for a while.
    Free GPUs are `kept_for` the job at that position, and not given to stopped jobs behind it; 0:
    they are kept for no job."""

    positions: Mapping[str, int]
    kept_for: int


class Gangs:
    """`nodes` has the most GPUs that each node has had, in order of appearance. The queue divides
    each GPU into `parts`; `rules` are for whole GPUs."""

    def __init__(
        self, nodes: Mapping[str, int], policy: str, rules: GangRules, parts: int = 1
    ) -> None:
        self._names = [*nodes]
        self._most = {**nodes}
        self._parts = parts
        hosts = [gpus * parts for gpus in nodes.values()]
        self._queue = ClusterQueue(hosts, policy, rules.in_parts(parts))

    def __contains__(self, id: str) -> bool:
        return id in self._queue

    def restore(self, jobs: Iterable[JobRecord]) -> None:
        """Restore the jobs in the order of their `saved` times, so a waiting job has waited until
        the last of these times."""
        for job in sorted(jobs, key=lambda job: job.saved):
            kept = {name: job.core[name] for name in KEPT if name in job.core}
            progress = GangProgress(
                self._gang(job),
                **kept,
                holds=self._holds(job.place) if job.is_active else (),
                wants=not job.is_active,
                asked=job.state == "yielding",
            )
            self._queue.restore(job.saved, progress)

    def set_nodes(self, now: float, gpus: Mapping[str, Gpus]) -> None:
        """Set the GPUs that each node has for jobs; a node that is not named has none."""
        self._names += [name for name in gpus if name not in self._names]
        for name, count in gpus.items():
            self._most[name] = max(self._most.get(name, 0), math.ceil(count))
        self._queue.set_hosts(now, self._holds(gpus))

    def request(self, now: float, job: JobRecord) -> None:
        """Let a job wait for its GPUs. Raises DoesNotFit if even the most GPUs that the nodes have
        had are too few."""
        try:
            self._queue.request(now, self._gang(job))
        except ValueError:
            raise DoesNotFit(
                f"a job of {wish_of(job)} never fits: {self._nodes_at_most()}"
            ) from None

    def _nodes_at_most(self) -> str:
        """Describe the nodes that have GPUs, or say that there are none."""
        sizes = [f"{name} {gpus}" for name, gpus in self._most.items() if gpus]
        kind = " in shards" if self._parts > 1 else ""
        if not sizes:
            return f"no node has a GPU{kind}" if self._most else "there is no node"
        return f"the nodes have{kind} at most {', '.join(sizes)}"

    def served(self, now: float, job: JobRecord, seconds: float) -> None:
        self._queue.served(now, job.id, seconds * self._devices(job.spec.gpus))

    def may_stop(self, now: float, id: str) -> None:
        self._queue.may_stop(now, id)

    def set_least(self, seconds: float) -> None:
        self._queue.set_least(seconds)

    def set_known(self, services: Iterable[float]) -> None:
        """Set the GPU-seconds that former jobs computed."""
        self._queue.set_known([service * self._parts for service in services])

    def moved(self, now: float, id: str, place: Mapping[str, Gpus]) -> None:
        self._queue.moved(now, id, self._holds(place))

    def finish(self, now: float, id: str) -> None:
        self._queue.finish(now, id)

    def close(self, now: float, id: str) -> None:
        self._queue.close(now, id)

    def decide(self, now: float) -> Decision:
        decision = self._queue.assign(now)
        starts = {grant.gang: self._place(grant.devices) for grant in decision.grants}
        return Decision(starts, decision.yields)

    def line(self) -> Line:
        positions = {id: number for number, id in enumerate(self._queue.waiting(), 1)}
        kept_for = (n for id, n in positions.items() if self._queue.progress(id).keeps_free)
        return Line(positions, next(kept_for, 0))

    def progress(self, id: str) -> dict[str, Any]:
        progress = self._queue.progress(id)
        return {name: getattr(progress, name) for name in KEPT}

    def is_valid(self, jobs: Iterable[JobRecord]) -> str:
        """Return an empty string, or the first broken invariant; one is that gangs and jobs
        agree."""
        for job in jobs:
            holds = self._place(self._queue.progress(job.id).holds)
            if holds != {**job.place}:
                return f"{job.id} has {holds} in the queue, and {job.place} in the journal"
        return self._queue.is_valid()

    def _gang(self, job: JobRecord) -> Gang:
        """Return the gang of a job. A part of a GPU is on one node."""
        devices = self._devices(job.spec.gpus)
        hosts = 1 if job.spec.wants_part else job.spec.nodes
        return Gang(job.id, devices, ENDLESS, skew=job.skew, hosts=hosts, stays=not job.resumes)

    def _devices(self, gpus: Gpus) -> int:
        return round(gpus * self._parts)

    def _holds(self, gpus: Mapping[str, Gpus]) -> list[int]:
        return [self._devices(gpus.get(name, 0)) for name in self._names]

    def _place(self, devices: Iterable[int]) -> dict[str, Gpus]:
        return {
            name: count / self._parts if count % self._parts else count // self._parts
            for name, count in zip(self._names, devices, strict=False)
            if count
        }


def wish_of(job: JobRecord) -> str:
    gpus = number_of_gpus(job.spec.gpus)
    if job.spec.wants_part:
        return gpus  # always on one node
    return f"{gpus} on {counted(job.spec.nodes, 'node')}" if job.spec.nodes else gpus
