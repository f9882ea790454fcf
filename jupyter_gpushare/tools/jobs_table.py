"""Tables of jobs and of nodes, for terminals and notebooks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..format import duration
from ..tables import Column, Table, table_of
from ..wire.jobs import JobView, NodeView

JOB_COLUMNS = [
    Column("Job", lambda job: job.id, cut=30),
    Column("State", lambda job: job.state),
    Column("GPUs", lambda job: f"{job.gpus:g}", right=True),
    Column("Elapsed", lambda job: elapsed(job), right=True),
    Column("GPU time", lambda job: duration(job.computed) if job.computed else "", right=True),
    Column("What it does", lambda job: job.line, wraps=True),
]
NODE_COLUMNS = [
    Column("Node", lambda node: node.name, cut=30),
    Column("GPUs", lambda node: str(node.gpus), right=True),
    Column("Shards of each", lambda node: str(node.shards) if node.shards else "", right=True),
    Column("Of jobs", lambda node: f"{node.ours:g}", right=True),
    Column("Of others", lambda node: f"{max(0, round(node.used - node.ours, 2)):g}", right=True),
    Column("State", lambda node: "" if node.alive else "does not answer"),
    Column("Reason", lambda node: node.reason, wraps=True),
]


def elapsed(job: JobView) -> str:
    """Return the time from its first beginning until its end or now; empty if it has not begun."""
    return "" if job.first is None else duration((job.ended or time.time()) - job.first)


def jobs(of: Iterable[JobView]) -> Table:
    return table_of("Jobs", JOB_COLUMNS, of)


def cancelled(view: JobView) -> str:
    """Return the sentence that answers the cancellation of this job."""
    over = "has already ended: " if view.ended and view.state != "cancelled" else ""
    return f"{view.id} {over}{view.sentence if view.ended else 'is cancelled'}"


def nodes(of: Iterable[NodeView]) -> Table:
    return table_of("Nodes", NODE_COLUMNS, of)
