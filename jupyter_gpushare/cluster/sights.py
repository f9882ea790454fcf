"""What is seen of the generation of an active job: what the engine says of it, and what its
launchers and ranks have written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from . import generation
from .engines.engine import Lease, Node, Status
from .jobs import OVERDUE, Ending, Job
from .looks import Look

RUNNING = Status("running")


class Sight(NamedTuple):
    """`is_gone`: the engine has said so, or that it is out of reach. `where`: the GPUs that it
    really has, where the engine has chosen. Of the nodes, some have begun, heard that they are to
    yield, and said with what status they ended. `is_silent`: one of them has ceased to beat."""

    is_gone: bool = False
    is_pending: bool = False
    where: Mapping[str, int] = {}
    is_closed: bool = False
    begun: Collection[str] = ()
    heard: Collection[str] = ()
    codes: Mapping[str, int] = {}
    is_silent: bool = False
    computed: float = 0.0


def sight_of(job: Job, look: Look, silent_seconds: float) -> Sight:
    """The engine has been asked before the directory is read: a generation that is gone by then
    has said how it ended, or never will."""
    path = Path(job.directory)
    directory = generation.path_of(path, job.generation)
    status = status_of(job, look)
    codes = codes_of(job, directory)
    silent = generation.silent(directory, silent_seconds) & job.place.keys()
    return Sight(
        is_gone=status is None or status.state == "unreachable" or lost_a_node(job, look.nodes),
        is_pending=status is not None and status.state == "pending",
        where=status.where if status else {},
        is_closed=generation.closed_path_of(path, job.generation).exists(),
        begun=generation.beats(directory) & job.place.keys(),
        heard=generation.heard(directory) & job.place.keys(),
        codes=codes,
        is_silent=bool(silent - codes.keys()),
        computed=computed_of(job, directory),
    )


def status_of(job: Job, look: Look) -> Status | None:
    """None: it is gone. One that could not be asked for counts as running."""
    if not job.handle:  # whether it was started is not known, before all that runs was looked at
        return RUNNING if look.found is None else None
    if look.statuses is None:
        return RUNNING
    return look.statuses.get(Lease(job.id, job.generation, job.handle))


def lost_a_node(job: Job, nodes: Mapping[str, Node] | None) -> bool:
    return nodes is not None and any(
        name not in nodes or not nodes[name].alive for name in job.place
    )


def computed_of(job: Job, directory: Path) -> float:
    """Seconds for which all ranks of it have computed."""
    if not job.spec.tells:
        return generation.ran(directory)
    told = generation.progress(directory)
    return told.computed if told else 0.0


def codes_of(job: Job, directory: Path) -> dict[str, int]:
    """Of its own nodes alone: what else is in there, its ranks may have written."""
    return {node: c for node, c in generation.endings(directory).items() if node in job.place}


def ending_of(job: Job, closed: Path) -> Ending:
    """How a generation ended that is closed. Raises OSError."""
    codes = codes_of(job, closed)
    failed = next((node for node, code in codes.items() if code > 0), "")
    return Ending(
        nodes=len(job.place),
        codes=codes,
        has_begun=generation.has_ranks(closed),
        computed=computed_of(job, closed),
        newest=generation.newest(closed),
        reason=job.reason,
        was_asked=job.state == "yielding" or job.reason == OVERDUE,
        said=generation.tail(closed / f"log.{failed}") if failed else "",
    )
