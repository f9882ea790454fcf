"""Messages between the service of a cluster and the programs that submit jobs.

A connection carries questions, each with one answer, in the frames of `framing`. The service is the
user's own, so no question says whose it is: the kernel tells the user of the socket.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from .messages import Error, Message

MAX_BODY_BYTES = 1 << 16  # of a question
MAX_ANSWER_BYTES = 64 << 20
MOST_GPUS = 1_000_000
MOST_JOBS = 1000  # in one answer
# The directory of a job has job.json, with its command, before it is submitted; work/ is where its
# commands run unless job.json names another directory.
JOB_FILE = "job.json"


class Submit(Message, frozen=True, forbid_unknown_fields=True):
    """A job whose directory is made already. At most `nodes` nodes; 0: any number. `resumes`: it
    saves when it is asked to yield, and goes on from there; `restarts`: from its beginning, where
    it was lost; `tells`: it writes what it computes. The answer is its JobView, also when the same
    is submitted again."""

    id: str
    directory: str
    gpus: Annotated[int, Meta(gt=0, le=MOST_GPUS)]
    nodes: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    resumes: bool = False
    restarts: bool = False
    tells: bool = False


class CancelJob(Message, frozen=True):
    """The answer is its JobView."""

    id: str


class LookAtJobs(Message, frozen=True):
    """The answer is a ClusterView: of jobs that are not over; of the newest ones, `all`; or of one
    `id`."""

    id: str = ""
    all: bool = False


class JobView(Message, frozen=True):
    """One job. Times are Unix seconds; `computed` are seconds on all of its GPUs; `sentence` says
    for people what it does, or why it does not."""

    id: str
    user: str
    state: str
    sentence: str
    gpus: int
    nodes: int
    place: dict[str, int]
    directory: str
    generation: int
    iteration: int | None
    computed: float
    submitted: float
    first: float | None
    ended: float | None
    yields: int
    losses: int


class NodeView(msgspec.Struct, frozen=True):
    """`used` are GPUs that any process has; `ours` are those of jobs of this cluster."""

    name: str
    gpus: int
    used: int
    ours: int
    alive: bool
    reason: str


class ClusterView(Message, frozen=True):
    """`jobs` in the order in which they were submitted; of those that are over the newest.
    `trouble` says why the nodes are not known, or not anew; empty: they are."""

    cluster: str
    pid: int
    jobs: list[JobView]
    nodes: list[NodeView]
    trouble: str


ToCluster: TypeAlias = Submit | CancelJob | LookAtJobs
FromCluster: TypeAlias = JobView | ClusterView | Error
