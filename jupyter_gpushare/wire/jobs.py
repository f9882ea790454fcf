"""Messages between the service of a cluster and the programs that submit jobs.

A connection carries questions, each with one answer, in the frames of `framing`. A question does
not name its user: the kernel tells the user of the socket, and a user with all rights may speak for
others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..errors import InvalidValue
from .messages import Done, Error, Message

MAX_BODY_BYTES = 1 << 16  # of a question
MAX_ANSWER_BYTES = 64 << 20
MOST_GPUS = 1_000_000
MOST_JOBS = 1000  # in one answer
Gpus: TypeAlias = int | float  # a whole number of GPUs, or a part of one in hundredths
PARTS = 100  # of a GPU
MOST_OPTIONS = 4096  # characters of all options of a job
NUMBER_OF_GPUS = (
    "a job has a whole number of GPUs from 1 on, or a part of one in hundredths such as 0.25"
)
# The directory of a job has job.json, with its command, before it is submitted; work/ is where its
# commands run unless job.json names another directory.
JOB_FILE = "job.json"
# The variables that a launcher sets for each rank itself, as `torchrun` does.
OF_RANKS = (
    r"RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)


class Submit(Message, frozen=True, forbid_unknown_fields=True):
    """Submit a job whose directory exists already. It gets at most `nodes` nodes; 0: any number.
    `resumes`: the job saves when it is asked to yield, and goes on from there. `restarts`: if it
    was lost, it starts from its beginning. `tells`: it writes what it computes. `options` are for
    sbatch, if the engine is Slurm. The answer is its JobView, even if the same job is submitted
    again."""

    id: str
    directory: str
    gpus: Gpus
    nodes: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    resumes: bool = False
    restarts: bool = False
    tells: bool = False
    options: tuple[str, ...] = ()


class SpeakFor(Message, frozen=True):
    """Later requests on this connection are of that user, whom a hub has identified. Only root and
    the user that runs the service may send it. The answer is Done."""

    user: str


class CancelJob(Message, frozen=True):
    """The answer is its JobView."""

    id: str


class LookAtJobs(Message, frozen=True):
    """The answer is a ClusterView of all jobs that have not ended; with `all`, of the newest ended
    ones, too; with an `id`, of that job."""

    id: str = ""
    all: bool = False


UseBy = Literal["user", "job", "day"]


class LookAtUse(Message, frozen=True):
    """The answer is the JobUses of the hours that begin in this time, in Unix seconds. It covers
    the user's own jobs; for root and the user that runs the service, all jobs."""

    start: float
    end: float
    by: UseBy


State = Literal[
    "queued", "starting", "running", "yielding", "ending", "done", "failed", "cancelled"
]
# queued      the core has it as a gang that wants its devices
# starting    its generation has computed nothing yet
# running     it computes
# yielding    it has the time of a lease to save and leave
# ending      its processes are to be killed
OVER: frozenset[State] = frozenset(("done", "failed", "cancelled"))


class JobView(Message, frozen=True):
    """One job. Times are Unix seconds; `computed` is in seconds, the sum over all of its GPUs.
    `sentence` tells people what the job does, or why it does not run; `line` says the same with
    only the last line of a traceback. `position` is 1 for the first job in the queue. `iteration`
    is the last one that the job has reported, of `iterations` in all, if these are known."""

    id: str
    user: str
    state: State
    sentence: str
    line: str
    position: int | None
    gpus: Gpus
    nodes: int
    place: dict[str, Gpus]
    directory: str
    generation: int
    iteration: int | None
    iterations: int | None
    computed: float
    submitted: float
    first: float | None
    ended: float | None
    yields: int
    losses: int


class NodeView(msgspec.Struct, frozen=True):
    """`used` are GPUs that any process has; `ours` are those of jobs of this cluster. Each GPU
    is divided into `shards` for jobs that want a part of one; 0: it is for jobs that want whole
    ones."""

    name: str
    gpus: int
    shards: int
    used: Gpus
    ours: Gpus
    alive: bool
    reason: str


class ClusterView(Message, frozen=True):
    """`jobs` has the newest finished ones first, then those that have GPUs, then waiting ones in
    queue order; otherwise the order of submission. `trouble` says why the nodes are not known, or
    are old; empty if they are known."""

    cluster: str
    pid: int
    jobs: list[JobView]
    nodes: list[NodeView]
    trouble: str


class UseRow(msgspec.Struct, frozen=True):
    """Sums of one user, job or day (`2026-11-01`, of the service's machine): GPU-seconds that jobs
    have computed, and how many jobs."""

    name: str
    gpu_seconds: float
    jobs: int


class JobUses(Message, frozen=True):
    """Rows by use, the largest first; days in their order."""

    rows: list[UseRow]


def gpus_in(text: str) -> Gpus:
    """Return the number of GPUs that the text says. Raises InvalidValue."""
    try:
        gpus: Gpus = int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        gpus = math.nan
    if not is_number_of_gpus(gpus):
        raise InvalidValue(f"{NUMBER_OF_GPUS}, and not {text!r}")
    return gpus


def check_gpus(gpus: Gpus) -> None:
    """Raises InvalidValue."""
    if not is_number_of_gpus(gpus):
        raise InvalidValue(f"{NUMBER_OF_GPUS}, and not {gpus}")


def check_options(options: Sequence[str]) -> None:
    """Raises InvalidValue."""
    for word in options:
        if not word.isprintable():
            raise InvalidValue(f"an option of a job is one line of text, and not {word!a}")
    if sum(map(len, options)) > MOST_OPTIONS:
        raise InvalidValue(f"the options of a job have at most {MOST_OPTIONS:,} characters")


def is_number_of_gpus(gpus: Gpus) -> bool:
    if 0 < gpus < 1:
        return gpus == round(gpus * PARTS) / PARTS
    return 1 <= gpus <= MOST_GPUS and type(gpus) is int


Question: TypeAlias = Submit | CancelJob | LookAtJobs | LookAtUse
ToCluster: TypeAlias = Question | SpeakFor
FromCluster: TypeAlias = JobView | ClusterView | JobUses | Done | Error
