"""The view of a cluster for people: jobs and nodes, with one sentence for each job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..format import duration, number_of_gpus
from ..wire.jobs import ClusterView, JobView, NodeView
from .engines.engine import HERE, NO_GPU, Capacity, Gpus, Node, are_hosts, plain
from .hands.hands import has_all_rights
from .jobs import JobRecord
from .launch.generation import JobProgress
from .looks.sights import Sight
from .queues.gangs import Line, wish_of
from .service import ClusterService, held, usable


def cluster_view(
    service: ClusterService, user: str, id: str, all: bool, cluster: str, now: float
) -> ClusterView:
    """Return the view of that user. Raises UnknownJob."""
    jobs = [service.job(id)] if id else service.jobs(all)
    free = free_of(service)
    lines = {wants_part: service.line(wants_part) for wants_part in (False, True)}
    return ClusterView(
        cluster=cluster,
        pid=os.getpid(),
        jobs=[
            job_view(service, user, job, lines[job.spec.wants_part], free, now)
            for job in sorted(jobs, key=lambda job: place_in(lines[job.spec.wants_part], job))
        ],
        nodes=node_views(service.nodes, service.jobs()),
        trouble=of_before(service.engine_trouble),
    )


def of_before(trouble: str) -> str:
    return f"{trouble}; so this is as it was before" if trouble else ""


def free_of(service: ClusterService) -> Capacity:
    """Return the GPUs of all nodes that jobs may have, and that no job has."""
    ours = held(service.jobs())
    there = usable(service.nodes, ours)
    whole = (max(0, gpus.whole - ours.get(name, 0)) for name, gpus in there.items())
    shared = (max(0, gpus.shared - ours.get(name, 0)) for name, gpus in there.items())
    return Capacity(int(sum(whole)), plain(sum(shared)))


def place_in(line: Line, job: JobRecord) -> tuple[int, int]:
    """Return where in the list a job stands."""
    if job.is_over or job.is_active:
        return (0 if job.is_over else 1), 0
    return 2, line.positions.get(job.id, len(line.positions) + 1)


def node_views(nodes: Mapping[str, Node], jobs: list[JobRecord]) -> list[NodeView]:
    ours = held(jobs)
    return [node_view(name, node, ours.get(name, 0)) for name, node in nodes.items()]


def node_view(name: str, node: Node, ours: Gpus) -> NodeView:
    if node.is_host:
        return NodeView(name, 0, 0, 0, 0, node.alive, node.reason)
    return NodeView(name, node.gpus, node.shards, node.used, ours, node.alive, node.reason)


def job_view(
    service: ClusterService, user: str, job: JobRecord, line: Line, free: Capacity, now: float
) -> JobView:
    """Return the view of a job. The view of another user's job has no directory, and no details of
    failures."""
    told, is_shown = service.sight(job).told, user == job.user or has_all_rights(user)
    said = sentence_of(service, job, line, free, now, is_shown)
    return JobView(
        id=job.id,
        user=job.user,
        state=job.state,
        sentence=said,
        line=in_a_line(said),
        position=line.positions.get(job.id),
        gpus=job.spec.gpus,
        nodes=job.spec.nodes,
        place={**job.place},
        directory=job.directory if is_shown else "",
        generation=job.generation,
        iteration=told.iteration if told else None,
        iterations=(told.of or None) if told else None,
        computed=service.run_seconds(job) * job.spec.gpus,
        submitted=job.submitted,
        first=job.first,
        ended=job.ended,
        yields=job.yields,
        losses=job.losses,
    )


def sentence_of(
    service: ClusterService,
    job: JobRecord,
    line: Line,
    free: Capacity,
    now: float,
    is_shown: bool,
) -> str:
    shown = str if is_shown else without_detail
    if job.state == "queued":
        refusal = shown(service.refusal(job))
        return waits(job, line, free, are_hosts(service.nodes), refusal)
    if job.state == "failed" and not is_shown:
        return "failed"
    return sentence(job, service.sight(job), now) + but(shown(service.trouble(job)))


def in_a_line(sentence: str) -> str:
    """Return the sentence with only the last line of a traceback, which tells the error."""
    first, *others = sentence.strip().splitlines() or [""]
    return f"{first.partition(': ')[0]}: {others[-1].strip()}" if others else first


def without_detail(text: str) -> str:
    """Return the text up to the first colon: the cause behind it may have lines of a log or names
    of files."""
    return text.partition(": ")[0]


def sentence(job: JobRecord, sight: Sight, now: float) -> str:
    """Return what the job does, or why it does not."""
    where = " and ".join(job.place)
    at = HERE if where == HERE else f"on {where}"
    match job.state:
        case "starting" if sight.is_pending:
            return f"waits in the engine's queue for {where}" + because(sight.reason)
        case "starting":
            return f"starts {at}"
        case "running":
            return f"runs {at}{iteration(sight.told)}"
        case "yielding":
            gpus = number_of_gpus(job.spec.gpus)
            return f"was asked to yield its {gpus}, and saves what it has"
        case "ending":
            return f"is ended: {job.reason}" + because(job.sentence)
        case "done":
            return f"done {duration(now - (job.ended or now))} ago"
        case "cancelled":
            return "cancelled"
    return job.sentence or "failed"


def because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def but(trouble: str) -> str:
    return f", but {trouble}" if trouble else ""


def waits(job: JobRecord, line: Line, free: Capacity, is_on_host: bool, refusal: str) -> str:
    there = free.shared if job.spec.wants_part else free.whole
    position, count = line.positions.get(job.id, 0), len(line.positions)
    which = f", number {position} of {count} in line" if position and count > 1 else ""
    kept = ", and kept for a job before it" if there and 0 < line.kept_for < position else ""
    refused = f", but {refusal}" if refusal else ""
    goes_on = "; it goes on where it was saved" if job.resume else ""
    which_are = " of GPUs with shards" if job.spec.wants_part else ""
    are_free = f"{there:g}{which_are} {'is' if there == 1 else 'are'} free"
    if is_on_host:
        return f"waits for the device host{which}; {NO_GPU}{kept}{refused}{goes_on}"
    return f"waits for {wish_of(job)}{which}; {are_free}{kept}{refused}{goes_on}"


def iteration(told: JobProgress | None) -> str:
    if told is None:
        return ""
    return f", iteration {told.iteration:,}" + (f" of {told.of:,}" if told.of else "")
