"""The verdict on an active job after a look at it: the verdict of the first matching row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from ..jobs import CANCELLED, NO_ROOM, NOT_STARTED, OVERDUE, RANK_LOST, JobRecord
from ..launch.generation import YIELDED
from .sights import Sight

Act = Literal["wait", "run", "ask", "end", "kill", "close"]
# wait    no change
# run     it has computed for the first time
# ask     repeat the yield request: not all of its nodes have heard it
# end     end it for the reason of the verdict: from now on it is killed
# kill    repeat the kill
# close   its generation has ended, or is given up


class Bounds(NamedTuple):
    """Seconds."""

    pending: float = 10.0  # in the engine's queue
    begin: float = 60.0  # after that, until all launchers have begun
    lease: float = 30.0  # to exit after a yield request
    kill: float = 10.0  # between a kill and giving it up
    silent: float = 30.0  # of one launcher while another one beats
    beat: float = 1.0  # between two beats
    sweep: float = 10.0  # between two sweeps for survivors
    postponed: float = 2.0  # first back-off after a start found no room; doubles
    most_postponed: float = 60.0  # longest back-off
    most_least: float = 600.0  # bound on the least turn, which grows if restarts cost much


class Verdict(NamedTuple):
    act: Act
    reason: str = ""


class ActiveJob(NamedTuple):
    """`seconds` is the time in its state, and `since_queue` the time since it also left the
    engine's queue."""

    job: JobRecord
    sight: Sight
    seconds: float
    since_queue: float
    bounds: Bounds

    @property
    def has_said_all(self) -> bool:
        return self.sight.codes.keys() >= self.job.place.keys()

    @property
    def has_lost_a_rank(self) -> bool:
        return self.sight.is_silent or not {*self.sight.codes.values()} <= {0, YIELDED}

    @property
    def has_begun(self) -> bool:
        return {*self.sight.begun} >= self.job.place.keys()

    @property
    def has_heard(self) -> bool:
        return {*self.sight.heard, *self.sight.codes} >= self.job.place.keys()


class VerdictRow(NamedTuple):
    holds: Callable[[ActiveJob], bool]
    verdict: Verdict


TABLE = (
    VerdictRow(lambda view: view.has_said_all or view.sight.is_gone, Verdict("close")),
    VerdictRow(
        lambda view: view.sight.is_closed, Verdict("close")
    ),  # closed before this service was started
    VerdictRow(
        lambda view: is_in(view, "ending") and view.seconds > view.bounds.kill, Verdict("close")
    ),
    VerdictRow(lambda view: is_in(view, "ending"), Verdict("kill")),
    VerdictRow(lambda view: view.job.is_cancelled, Verdict("end", CANCELLED)),
    VerdictRow(lambda view: view.has_lost_a_rank, Verdict("end", RANK_LOST)),
    VerdictRow(lambda view: waits_for_long(view), Verdict("end", NO_ROOM)),
    VerdictRow(lambda view: begins_for_long(view), Verdict("end", NOT_STARTED)),
    VerdictRow(
        lambda view: is_in(view, "yielding") and view.seconds > view.bounds.lease,
        Verdict("end", OVERDUE),
    ),
    VerdictRow(lambda view: is_in(view, "yielding") and not view.has_heard, Verdict("ask")),
    VerdictRow(lambda view: is_in(view, "starting") and view.sight.computed > 0, Verdict("run")),
    VerdictRow(lambda _: True, Verdict("wait")),
)


def verdict_of(job: JobRecord, sight: Sight, now: float, bounds: Bounds) -> Verdict:
    view = ActiveJob(job, sight, now - job.since, now - max(job.since, sight.pended), bounds)
    return next(row.verdict for row in TABLE if row.holds(view))


def is_in(view: ActiveJob, state: str) -> bool:
    return view.job.state == state


def waits_for_long(view: ActiveJob) -> bool:
    starts = is_in(view, "starting") and view.sight.is_pending and not view.sight.begun
    return starts and view.seconds > view.bounds.pending


def begins_for_long(view: ActiveJob) -> bool:
    begins = is_in(view, "starting") and not view.sight.is_pending and not view.has_begun
    return begins and view.since_queue > view.bounds.begin
