"""The sight of an active generation: the engine's answer about it, and the files of its launchers
and ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..engines.engine import Node, Status
from ..jobs import OVERDUE, Ending, JobRecord, lease_of
from ..launch.facts import Facts
from ..launch.generation import JobProgress
from .looks import EngineLook

RUNNING = Status("running")


class Sight(NamedTuple):
    """`is_gone`: by the engine, the generation is gone or out of reach. `where`: its GPUs, if the
    engine has chosen them. `begun` and `heard`: the nodes that have begun, and that have heard the
    request to yield. `codes`: the statuses of nodes that have ended. `is_silent`: a node has
    stopped beating, or has reported that it cannot continue."""

    is_gone: bool = False
    is_pending: bool = False
    reason: str = ""  # the engine's reason for that
    pended: float = 0.0  # when it was last pending, in Unix seconds
    where: Mapping[str, int] = {}
    is_closed: bool = False
    begun: Collection[str] = ()
    heard: Collection[str] = ()
    codes: Mapping[str, int] = {}
    is_silent: bool = False
    keeps: bool = False  # it has announced that it saves and resumes
    skew: float = 0.0  # of its model
    computed: float = 0.0
    told: JobProgress | None = None


NOTHING = Sight()


def sight_of(
    job: JobRecord, look: EngineLook, facts: Facts, now: float = 0.0, before: Sight = NOTHING
) -> Sight:
    """Return the sight of this step; `before` is that of the step before. The engine is asked
    before the directory is read. So a generation that is gone by then has already recorded how it
    ended, or never will."""
    status = status_of(job, look)
    is_pending = status is not None and status.state == "pending"
    return Sight(
        is_gone=status is None or status.state == "unreachable" or lost_a_node(job, look.nodes),
        is_pending=is_pending,
        reason=status.reason if status else "",
        pended=now if is_pending else before.pended,
        where=status.where if status else {},
        is_closed=facts.is_closed,
        begun={*facts.begun},
        heard={*facts.heard},
        codes=facts.codes,
        is_silent=bool({*facts.silent} - facts.codes.keys() or facts.trouble),
        keeps=facts.keeps,
        skew=facts.skew,
        computed=computed_of(job, facts),
        told=facts.told,
    )


def status_of(job: JobRecord, look: EngineLook) -> Status | None:
    """Return the status; None if it is gone. A generation counts as running if the engine did not
    answer."""
    if not job.handle:  # the next sweep finds whether it was started
        return RUNNING if look.found is None else None
    if look.statuses is None:
        return RUNNING
    return look.statuses.get(lease_of(job))


def lost_a_node(job: JobRecord, nodes: Mapping[str, Node] | None) -> bool:
    return nodes is not None and any(
        name not in nodes or not nodes[name].alive for name in job.place
    )


def computed_of(job: JobRecord, facts: Facts) -> float:
    """Return the seconds for which all of its ranks have computed. Only the report counts for a job
    that has ever made one: it will do so again."""
    told = facts.told
    if job.spec.tells or job.keeps or (told and facts.keeps):
        return told.computed if told else 0.0
    return facts.ran


def ending_of(job: JobRecord, facts: Facts) -> Ending:
    """Return how a closed generation ended."""
    return Ending(
        nodes=len(job.place),
        codes=facts.codes,
        has_launched=bool(facts.begun),
        has_begun=facts.has_ranks,
        computed=computed_of(job, facts),
        newest=facts.newest,
        reason=job.reason,
        was_asked=job.state == "yielding" or job.reason == OVERDUE,
        said=facts.said,
        trouble=facts.trouble,
    )
