"""A job, its states, and the table of outcomes: how a generation ended decides the next state.

queued -> starting -> running (-> yielding) (-> ending) -> queued | done | failed | cancelled
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ..wire.jobs import MOST_GPUS, OVER, Gpus, State
from .engines.engine import Lease
from .hands.hands import own_user
from .launch.generation import FENCED, YIELDED

ACTIVE = frozenset(("starting", "running", "yielding", "ending"))

MOST_LOSSES = 3  # one after the other, without a newer checkpoint
NO_ROOM = "no room"
NOT_STARTED = "not started"
REFUSED = "refused"
LOST = "lost"
OVERDUE = "overdue"
CANCELLED = "cancelled"
RANK_LOST = "a rank is lost"


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a job. Launchers find its command in its directory."""

    gpus: Gpus
    nodes: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0  # at most; 0: any number
    resumes: bool = False  # it saves when it is asked to yield, and resumes from there
    restarts: bool = False  # it may start from its beginning again if it was lost
    tells: bool = False  # it reports how long it computes; otherwise all time counts
    options: tuple[str, ...] = ()  # for the engine's own command, at each start

    @property
    def wants_part(self) -> bool:
        """Whether it wants a part of one GPU, which others use too."""
        return self.gpus < 1


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that a restarted service has to know about a job. Times are Unix seconds."""

    id: str
    user: str
    directory: str
    spec: Spec
    submitted: float
    state: State = "queued"
    since: float = 0.0  # when it entered its state
    generation: int = 0  # number of its last start; it only grows
    place: Mapping[str, Gpus] = {}  # GPUs of each node, while it is active
    handle: str = ""  # the engine's name for its processes
    resume: str = ""  # the checkpoint to resume from
    told: float = 0.0  # seconds that this generation has computed, and the core has counted
    reason: str = ""  # why it is ending
    is_cancelled: bool = False
    keeps: bool = False  # one of its generations has called gpushare.checkpoint()
    skew: float = 0.0  # its largest tensor, as a part of its model
    first: float | None = None  # when it computed for the first time
    ended: float | None = None
    yields: int = 0
    losses: int = 0  # one after the other, without a newer checkpoint
    sentence: str = ""  # how it ended, or why it is ending
    core: Mapping[str, Any] = {}  # its progress in the core, at `saved`
    saved: float = 0.0

    @property
    def resumes(self) -> bool:
        """Whether it saves when it is asked to yield, and resumes from there."""
        return self.spec.resumes or self.keeps

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def lease_of(job: JobRecord) -> Lease:
    user = "" if job.user == own_user() else job.user
    return Lease(job.id, job.generation, job.handle, user)


class Ending(NamedTuple):
    """How a generation ended. `codes` has the exit statuses that nodes have recorded."""

    nodes: int
    codes: Mapping[str, int] = {}
    has_launched: bool = False  # one of its launchers has begun
    has_begun: bool = False  # one of its ranks may have begun
    computed: float = 0.0
    newest: str = ""  # its newest checkpoint
    reason: str = ""  # why the service ended it
    was_asked: bool = False  # it was asked to yield
    said: str = ""  # the last lines of a log
    trouble: str = ""  # errors of its launchers

    def all_said(self, *codes: int) -> bool:
        return len(self.codes) == self.nodes and {*self.codes.values()} <= {*codes}

    @property
    def failure(self) -> int:
        """The status of a rank that failed by itself; a rank that a signal ended is lost, not
        failed."""
        failures = (code for code in self.codes.values() if 0 < code <= 255)
        return next((code for code in failures if code not in (YIELDED, FENCED)), 0)

    @property
    def has_saved(self) -> bool:
        return bool(self.newest)


class Outcome(NamedTuple):
    """An event of the job, and its state from then on. `sentence` tells how it ended, or why it was
    not started."""

    what: str
    state: State
    losses: int = 0
    sentence: str = ""


class OutcomeRow(NamedTuple):
    holds: Callable[[JobRecord, Ending], bool]
    follows: Callable[[JobRecord, Ending], Outcome]


def outcome_of(job: JobRecord, ending: Ending) -> Outcome:
    """Return the outcome of the first matching row."""
    return next(row.follows(job, ending) for row in TABLE if row.holds(job, ending))


def losses_of(job: JobRecord, ending: Ending) -> int:
    return 0 if ending.has_saved else job.losses + 1


def can_go_on(job: JobRecord, ending: Ending) -> bool:
    """Whether the job may start again. A job that neither resumes nor restarts must not run
    twice."""
    return job.resumes or job.spec.restarts or not ending.has_begun


def is_refused(job: JobRecord, ending: Ending) -> bool:
    return ending.reason == NO_ROOM or (ending.reason == NOT_STARTED and not job.handle)


def is_not_started(job: JobRecord, ending: Ending) -> bool:
    """Whether the engine had its processes, but no rank has begun."""
    is_so = ending.reason == NOT_STARTED or not (ending.reason or ending.has_launched)
    return is_so and job.handle != "" and not ending.has_begun


def why_not_started(job: JobRecord, ending: Ending) -> str:
    said = "; ".join(line.strip() for line in ending.said.splitlines() if line.strip())
    return ending.trouble or said or f"the job has not begun on {' and '.join(job.place)}"


def lost(job: JobRecord, ending: Ending) -> str:
    reasons = "; ".join(reason for reason in (ending.reason, ending.trouble) if reason)
    return f"generation {job.generation} was lost" + (f" ({reasons})" if reasons else "")


TABLE = (
    OutcomeRow(lambda job, _: job.is_cancelled, lambda *_: Outcome(CANCELLED, "cancelled")),
    OutcomeRow(lambda _, ending: ending.all_said(0), lambda *_: Outcome("done", "done")),
    OutcomeRow(
        lambda _, ending: ending.failure != 0,
        lambda _, ending: Outcome(
            "failed",
            "failed",
            sentence=f"it exited with status {ending.failure}: {ending.said}".rstrip(": "),
        ),
    ),
    OutcomeRow(  # without a new checkpoint it would do the same forever
        lambda _, ending: ending.all_said(0, YIELDED) and (ending.was_asked or ending.has_saved),
        lambda job, ending: Outcome("yielded", "queued", 0 if ending.has_saved else job.losses),
    ),
    OutcomeRow(
        lambda _, ending: ending.reason == REFUSED,
        lambda job, _: Outcome("failed", "failed", job.losses, job.sentence),
    ),
    OutcomeRow(  # the engine has never had a process of it
        lambda job, ending: not ending.has_begun and is_refused(job, ending),
        lambda job, ending: Outcome(ending.reason, "queued", job.losses),
    ),
    OutcomeRow(  # it was asked before it had anything to save
        lambda _, ending: ending.was_asked and not ending.has_launched and not ending.has_begun,
        lambda job, _: Outcome("yielded", "queued", job.losses),
    ),
    OutcomeRow(
        lambda job, ending: is_not_started(job, ending) and job.losses + 1 >= MOST_LOSSES,
        lambda job, ending: Outcome(
            NOT_STARTED,
            "failed",
            MOST_LOSSES,
            f"it did not start, as {MOST_LOSSES - 1} times before: {why_not_started(job, ending)}",
        ),
    ),
    OutcomeRow(
        lambda job, ending: is_not_started(job, ending),
        lambda job, ending: Outcome(
            NOT_STARTED, "queued", job.losses + 1, why_not_started(job, ending)
        ),
    ),
    OutcomeRow(
        lambda job, ending: not can_go_on(job, ending),
        lambda job, ending: Outcome(
            LOST,
            "failed",
            sentence=f"{lost(job, ending)}, and a job of this kind is not started again",
        ),
    ),
    OutcomeRow(
        lambda job, ending: losses_of(job, ending) >= MOST_LOSSES,
        lambda job, ending: Outcome(
            LOST,
            "failed",
            MOST_LOSSES,
            f"{lost(job, ending)}, as {MOST_LOSSES - 1} before it, without a newer checkpoint",
        ),
    ),
    OutcomeRow(
        lambda *_: True,
        lambda job, ending: Outcome(LOST, "queued", losses_of(job, ending), ending.trouble),
    ),
)
