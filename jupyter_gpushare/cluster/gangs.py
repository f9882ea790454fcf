"""The queue of the cluster with names: jobs are its gangs, and nodes are its hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .._core import ClusterQueue, Gang, GangProgress, GangRules
from ..errors import DoesNotFit
from ..format import counted
from .jobs import Job

# What a journal keeps of a gang. What it holds, and whether it waits, follows from its job.
KEPT = (
    *("queue", "ticket", "executed", "run", "waited", "granted", "served", "resumes", "started"),
    *("waited_in_all", "promoted"),
)
ENDLESS = 1e9  # seconds; how long a job lasts is not known


class Decision(NamedTuple):
    """Jobs that are to start, with their GPUs of each node, and jobs that are asked to yield."""

    starts: Mapping[str, Mapping[str, int]]
    yields: Iterable[str]


class Gangs:
    """`nodes` has the most GPUs that each node has had, in the order in which they came."""

    def __init__(self, nodes: Mapping[str, int], policy: str, rules: GangRules) -> None:
        self._names = [*nodes]
        self._most = nodes
        self._queue = ClusterQueue([*nodes.values()], policy, rules)

    def __contains__(self, id: str) -> bool:
        return id in self._queue

    def restore(self, jobs: Iterable[Job]) -> None:
        """In the order in which they were saved: so a job that waits has waited until the last of
        these times."""
        for job in sorted(jobs, key=lambda job: job.saved):
            kept = {name: job.core[name] for name in KEPT if name in job.core}
            progress = GangProgress(
                gang_of(job),
                **kept,
                holds=self._holds(job.place) if job.is_active else (),
                wants=not job.is_active,
                asked=job.state == "yielding",
            )
            self._queue.restore(job.saved, progress)

    def set_nodes(self, now: float, gpus: Mapping[str, int]) -> None:
        """Each node has these GPUs for jobs; one that is not named has none."""
        self._names += [name for name in gpus if name not in self._names]
        self._queue.set_hosts(now, [gpus.get(name, 0) for name in self._names])

    def request(self, now: float, job: Job) -> None:
        """Raises DoesNotFit where the nodes could never hold it, at their largest."""
        try:
            self._queue.request(now, gang_of(job))
        except ValueError:
            raise DoesNotFit(
                f"a job of {wish_of(job)} never fits: {self._nodes_at_most()}"
            ) from None

    def _nodes_at_most(self) -> str:
        sizes = [f"{name} {gpus}" for name, gpus in self._most.items()]
        return f"the nodes have at most {', '.join(sizes)}" if sizes else "there is no node"

    def served(self, now: float, job: Job, seconds: float) -> None:
        self._queue.served(now, job.id, seconds * job.spec.gpus)

    def moved(self, now: float, id: str, place: Mapping[str, int]) -> None:
        self._queue.moved(now, id, self._holds(place))

    def finish(self, now: float, id: str) -> None:
        self._queue.finish(now, id)

    def close(self, now: float, id: str) -> None:
        self._queue.close(now, id)

    def decide(self, now: float) -> Decision:
        decision = self._queue.assign(now)
        starts = {grant.gang: self._place(grant.devices) for grant in decision.grants}
        return Decision(starts, decision.yields)

    def progress(self, id: str) -> dict[str, Any]:
        progress = self._queue.progress(id)
        return {name: getattr(progress, name) for name in KEPT}

    def is_valid(self, jobs: Iterable[Job]) -> str:
        """Return an empty string, or what is wrong: also where a gang has not what its job has."""
        for job in jobs:
            holds = self._place(self._queue.progress(job.id).holds)
            if holds != {**job.place}:
                return f"{job.id} has {holds} in the queue, and {job.place} in the journal"
        return self._queue.is_valid()

    def _holds(self, place: Mapping[str, int]) -> list[int]:
        return [place.get(name, 0) for name in self._names]

    def _place(self, devices: Iterable[int]) -> dict[str, int]:
        return {name: count for name, count in zip(self._names, devices, strict=False) if count}


def wish_of(job: Job) -> str:
    gpus = counted(job.spec.gpus, "GPU")
    return f"{gpus} on {counted(job.spec.nodes, 'node')}" if job.spec.nodes else gpus


def gang_of(job: Job) -> Gang:
    return Gang(job.id, job.spec.gpus, ENDLESS, hosts=job.spec.nodes, stays=not job.spec.resumes)
