"""What people see of a cluster: jobs and nodes, with one sentence for what each job does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ..format import counted, duration
from ..wire.jobs import ClusterView, JobView, NodeView
from . import generation
from .engines.engine import Node
from .gangs import wish_of
from .jobs import Job
from .service import Service, usable

UNKNOWN = "the engine does not answer, so this is as it was before"


def cluster_view(service: Service, id: str, all: bool, cluster: str, now: float) -> ClusterView:
    """Raises UnknownJob."""
    jobs = [service.job(id)] if id else service.jobs(all)
    free = usable(service.nodes, service.jobs())
    for job in service.jobs():
        for node, gpus in job.place.items():
            free[node] = free.get(node, 0) - gpus
    return ClusterView(
        cluster=cluster,
        pid=os.getpid(),
        jobs=[job_view(job, free, now) for job in jobs],
        nodes=node_views(service.nodes, service.jobs()),
        trouble="" if service.is_answered else UNKNOWN,
    )


def node_views(nodes: Mapping[str, Node], jobs: list[Job]) -> list[NodeView]:
    ours = Counter[str]()
    for job in jobs:
        ours.update(job.place)
    return [
        NodeView(name, node.gpus, node.used, ours[name], node.alive, node.reason)
        for name, node in nodes.items()
    ]


def job_view(job: Job, free: Mapping[str, int], now: float) -> JobView:
    told = generation.progress(generation.path_of(Path(job.directory), job.generation))
    return JobView(
        id=job.id,
        user=job.user,
        state=job.state,
        sentence=sentence(job, told, free, now),
        gpus=job.spec.gpus,
        nodes=job.spec.nodes,
        place={**job.place},
        directory=job.directory,
        generation=job.generation,
        iteration=told.iteration if told and job.is_active else None,
        computed=float(job.core.get("run", 0.0)) * job.spec.gpus,
        submitted=job.submitted,
        first=job.first,
        ended=job.ended,
        yields=job.yields,
        losses=job.losses,
    )


def sentence(
    job: Job, told: generation.Progress | None, free: Mapping[str, int], now: float
) -> str:
    """Return what the job does, or why it does not."""
    where = " and ".join(job.place)
    match job.state:
        case "queued":
            return waits(job, sum(max(0, gpus) for gpus in free.values()))
        case "starting":
            return f"starts on {where}"
        case "running":
            return f"runs on {where}{iteration(told)}"
        case "yielding":
            return f"was asked to yield its {counted(job.spec.gpus, 'GPU')}, and saves what it has"
        case "ending":
            return f"is ended: {job.reason}"
        case "done":
            return f"done {duration(now - (job.ended or now))} ago"
        case "cancelled":
            return "cancelled"
    return job.sentence or "failed"


def waits(job: Job, free: int) -> str:
    goes_on = ", and it goes on where it was saved" if job.resume else ""
    return f"waits for {wish_of(job)}; {free} {'is' if free == 1 else 'are'} free{goes_on}"


def iteration(told: generation.Progress | None) -> str:
    return f", iteration {told.iteration:,}" if told else ""
