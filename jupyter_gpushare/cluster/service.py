"""The service of a cluster: it orders jobs on an engine that launches them.

Each step looks at the engine, follows the active jobs, lets the queue decide, and acts. Each change
of a job's state is in the journal before the service acts on it. So the process may be killed at
any moment: another one restores the queue from the journal, finds the running generations, and
continues. If a generation in the journal was never started, only its number is lost.

Looks and acts ask the engine, and change no state of the service, so other threads may submit and
cancel jobs meanwhile. All other methods ask no engine, and run in one thread at a time.

It has no socket, process or thread, and takes the time from `clock` alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from .._core import GangRules
from ..errors import DoesNotFit, EngineUnavailable, InvalidValue, UnknownJob, cause
from ..settings import JobPolicy
from ..wire.jobs import MOST_JOBS, OVER, Gpus, JobUses, LookAtUse
from .acts import Acts, EngineAct, Started
from .engines.engine import NO_GPU, PART, Capacity, Engine, Lease, Node, are_hosts, capacity, plain
from .hands.hand import DirectoryLost
from .hands.hands import Hands
from .jobs import CANCELLED, NO_ROOM, NOT_STARTED, JobRecord, Outcome, Spec, lease_of, outcome_of
from .journal import JobEvent, Journal
from .launch.facts import Facts, facts_unread
from .looks.looks import EngineLook, look_at
from .looks.sights import NOTHING, Sight, sight_of
from .looks.verdicts import Bounds, Verdict, verdict_of
from .pruning import ALL, NEVER, Pruning, Retention
from .queues.gangs import Line, wish_of
from .queues.postponed import Postponed
from .queues.queues import Queues
from .records import Records
from .troubles import Troubles

UNKNOWN = "the engine has not said whether it was started"
RESTARTS = 20  # the number of newest ones, whose median counts
KNOWN = 1000  # the number of finished jobs from which `gittins` learns
TURN_OF_RESTARTS = 10  # the least turn in restarts
REFUSALS = {
    NO_ROOM: "its last start was refused",
    NOT_STARTED: "its last start came to nothing",
}


class ClusterService:
    """Each method blocks, and raises sqlite3.Error or OSError if the journal cannot be written.
    Then this object knows more than the journal, and has to be replaced by a new one."""

    def __init__(
        self,
        journal: Journal,
        engine: Engine,
        clock: Callable[[], float],
        *,
        policy: JobPolicy = "las",
        rules: GangRules,
        bounds: Bounds = Bounds(),  # noqa: B008 (it cannot change)
        hands: Hands | None = None,
        keep: Retention = ALL,
    ) -> None:
        """`engine` has to be of the journal's cluster, and `rules` have to have `told`. `clock`
        returns Unix time, without leaps. Without `hands` all jobs are of the service's own
        user."""
        self._journal, self._engine, self.clock, self._bounds = journal, engine, clock, bounds
        self._hands = hands or Hands()
        self._acts = Acts(journal.cluster(), engine, self._hands, bounds.beat)
        self._records = Records(journal)
        self._pruning = Pruning(journal, self._hands, keep)
        self._most = journal.nodes()
        self._least = rules.least
        self._queues = Queues(self._most, policy, rules)
        self._learns = policy == "gittins"
        self._queues.restore(self._records.all())
        self._set_least()
        self._learn()
        self._postponed = Postponed(bounds.postponed, bounds.most_postponed)
        self._swept = NEVER  # when all running leases were last looked at
        self._decided: list[EngineAct] = []
        self._sights: dict[str, Sight] = {}  # of active jobs, in the last step
        self._counted: dict[str, float] = {}  # when an active job's seconds were last counted
        self._troubles = Troubles()
        self.nodes: Mapping[str, Node] = {}  # the engine's last answer
        self.engine_trouble = ""  # of the last step: why the engine did not answer, or has no nodes

    # --- what people ask for ----------------------------------------------------------------------

    def submit(self, id: str, user: str, directory: str, spec: Spec) -> JobRecord:
        """Submit a job. Repeating this has no effect. Raises InvalidValue, DoesNotFit, and
        EngineUnavailable if no node has ever been seen."""
        if (known := self._records.get(id)) is not None:
            if (known.user, known.directory, known.spec) != (user, directory, spec):
                raise InvalidValue(f"there is another job of the id {id}")
            return known
        if not PART.fullmatch(id):
            raise InvalidValue(f"an id of a job has 1 to 64 of a-z, 0-9 and '-', and not {id!r}")
        now = self.clock()
        job = JobRecord(id=id, user=user, directory=directory, spec=spec, submitted=now)
        self._request(now, job)
        return self._write(now, job, "submitted")

    def _request(self, now: float, job: JobRecord) -> None:
        if self.engine_trouble and not self._most:
            raise EngineUnavailable(self.engine_trouble)
        try:
            self._queues.of(job).request(now, job)
        except DoesNotFit:
            if are_hosts(self.nodes):
                raise DoesNotFit(f"a job of {wish_of(job)} never fits: {NO_GPU}") from None
            raise

    def cancel(self, id: str) -> JobRecord:
        """Cancel a job. Cancelling a finished job has no effect. Raises UnknownJob."""
        job = self.job(id)
        now = self.clock()
        if job.state == "queued":
            return self._settle(now, job, Outcome(CANCELLED, "cancelled"))
        if job.is_active and not job.is_cancelled:
            return self._write(now, job, "cancel", is_cancelled=True)
        return job

    def jobs(self, all: bool = False) -> list[JobRecord]:
        """Return jobs that have not ended; with `all`, the newest finished ones, too."""
        if not all:
            return self._records.all()
        present = {job.id: job for job in self._records.all()}
        newest = [present.pop(job.id, job) for job in self._journal.newest(MOST_JOBS)]
        return [*present.values(), *newest]

    def job(self, id: str) -> JobRecord:
        """Return the job with this id, or the only job whose id begins with it. Raises
        UnknownJob."""
        if (job := self._records.get(id)) is not None:
            return job
        found = [job for job in self.jobs(all=True) if id and job.id.startswith(id)]
        if len(found) > 1:
            ids = ", ".join(sorted(job.id for job in found))
            raise UnknownJob(f"the ids of {len(found)} jobs begin with {id}: {ids}")
        if not found:
            raise UnknownJob(f"there is no job {id}")
        return found[0]

    def run_seconds(self, job: JobRecord) -> float:
        """Return for how long a job has computed on its GPUs, until the last look."""
        core = job.core if job.is_over else self._queues.of(job).progress(job.id)
        return float(core.get("executed", 0.0))  # `run` restarts with each promotion

    def sight(self, job: JobRecord) -> Sight:
        """Return the sight of an active job in the last step."""
        return self._sights.get(job.id, NOTHING)

    def trouble(self, job: JobRecord) -> str:
        """Return why the last step could not look after the job; empty if it could."""
        return self._troubles.of(job.id)

    def line(self, wants_part: bool) -> Line:
        """Return the line of jobs that wait for a part of a GPU, or for whole ones."""
        return self._queues.line(wants_part)

    def refusal(self, job: JobRecord) -> str:
        """Return why the job's last start failed; empty if the job has computed since."""
        return self._postponed.refusal(job.id)

    def uses(self, asked: LookAtUse, user: str | None) -> JobUses:
        """Return the use by the jobs of one user, or of all."""
        self._records.save()
        return JobUses(self._journal.uses(asked, user))

    def is_valid(self) -> str:
        """Return an empty string, or what is wrong, between two calls."""
        return self._queues.is_valid(self._records.all())

    # --- a step -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Look, decide and act, in a process without other threads."""
        self.decide(self.look())
        for act in self.acts():
            if started := act():
                self.settle(started)

    def look(self) -> EngineLook:
        """Ask the engine for the next decision."""
        asks_for_all = not 0 <= self.clock() - self._swept < self._bounds.sweep
        return look_at(self._engine, self._records.leases(), asks_for_all)

    def decide(self, look: EngineLook) -> None:
        """Decide after a look, which has to be newer than the last decision."""
        now = self.clock()
        self.engine_trouble = look.trouble
        before = held(self._records.active())
        self._see_nodes(now, look.nodes)
        self._sweep(now, look)
        self._troubles.begin()
        for job in self._records.active():
            self._follow(now, job, look)
        for id in self._postponed.due(now):
            self._queues.of(self._records[id]).request(now, self._records[id])
        if look.nodes is not None:  # otherwise nothing could be started or asked
            after = held(self._records.active())
            self._queues.set_nodes(now, usable(look.nodes, after, before))
            self._enact(now)
        self._records.save_now_and_then(now)
        self._prune(now, look)
        self._hands.keep({job.user for job in self._records.all()})

    def acts(self) -> list[EngineAct]:
        """Return the acts decided since the last call. The caller runs them in this order before
        the next look, and calls `settle` for each start."""
        acts, self._decided = self._decided, []
        return acts

    def settle(self, started: Started) -> None:
        """Write the outcome of a start. The job may have been cancelled meanwhile."""
        job, now = self._records[started.job], self.clock()  # a start may take seconds
        if started.lease:
            handle = started.lease.handle
            self._write(now, job, "started", handle, handle=handle, since=now)
        elif started.reason:
            self._close(now, replace(job, reason=started.reason, sentence=started.sentence))
        else:
            self._swept = NEVER  # the next sweep, at once, finds whether it was started

    def _prune(self, now: float, look: EngineLook) -> None:
        self._pruning.forget_one(now)
        held = {name for job in self._records.active() for name in job.place}
        if look.nodes is not None and self._pruning.prune(now, look.nodes, held):
            self._most = self._journal.nodes()

    def _see_nodes(self, now: float, nodes: Mapping[str, Node] | None) -> None:
        if nodes is None:
            return
        self.nodes = nodes
        most = {
            name: capacity(node, node.gpus).at_least(self._most.get(name, Capacity()))
            for name, node in nodes.items()
        }
        more = {name: gpus for name, gpus in most.items() if gpus != self._most.get(name)}
        if more:
            told = {name: max(gpus) for name, gpus in more.items()}
            self._journal.set_nodes(more, JobEvent(now, "", 0, "nodes", str(told)))
            self._most |= more
            self._queues.set_nodes(now, self._most)  # jobs may request GPUs that others use

    def _sweep(self, now: float, look: EngineLook) -> None:
        """Adopt the leases that should run, and kill those that should not: of generations that
        were given up, and of finished jobs."""
        if look.found is None:
            return
        self._swept = now
        for lease in look.found:
            job = self._records.active_at(lease.job, lease.generation)
            if job is None:
                self._kill(lease)
            elif not job.handle:
                self._write(now, job, "adopted", lease.handle, handle=lease.handle)

    def _follow(self, now: float, job: JobRecord, look: EngineLook) -> None:
        facts = self._look_into(now, job)
        self._sights[job.id] = sight = sight_of(job, look, facts, now, self.sight(job))
        if sight.keeps and (not job.keeps or sight.skew > job.skew):
            self._queues.of(job).may_stop(now, job.id)
            job = self._write(now, job, "keeps", keeps=True, skew=sight.skew)
        job = self._count(now, job, sight.computed)
        if sight.where.keys() <= self._most.keys() and is_moved(job, sight.where):
            job = self._move(now, job, sight.where)
        self._obey(now, job, verdict_of(job, sight, now, self._bounds), sight)

    def _look_into(self, now: float, job: JobRecord) -> Facts:
        hand, nodes = self._hands.of(job.user), [*job.place]
        try:
            return hand.look(job.directory, job.generation, nodes, self._bounds.silent)
        except OSError as error:
            self._note(now, job, f"its directory cannot be read: {cause(error)}")
            return facts_unread(nodes, self.sight(job).told)

    def _obey(self, now: float, job: JobRecord, verdict: Verdict, sight: Sight) -> None:
        match verdict.act:
            case "run":
                self._postponed.forget(job.id)
                self._write(now, job, "computes", state="running", first=first_of(job, now))
                self._set_least()
            case "ask":
                self._decided.append(partial(self._acts.ask_yield, job))
            case "end":
                why = {"reason": verdict.reason, "sentence": sight.reason}
                job = self._write(now, job, "end", verdict.reason, state="ending", **why)
                if verdict.reason in REFUSALS:  # closed first, so that it cannot begin meanwhile
                    self._close(now, job)
                else:
                    self._kill(lease_of(job))
            case "kill":
                self._kill(lease_of(job))
            case "close":
                self._close(now, job)

    def _set_least(self) -> None:
        """Set the least turn of a job from measured restarts. Otherwise jobs that start slowly
        would spend their turns on starting."""
        costs = self._journal.restarts(RESTARTS)
        self._queues.set_least(least_of(costs, self._least, self._bounds.most_least))

    def _learn(self) -> None:
        """Tell the queues how much finished jobs have computed."""
        if self._learns:
            self._queues.set_known(self._journal.services(KNOWN))

    # --- acts -------------------------------------------------------------------------------------

    def _enact(self, now: float) -> None:
        decision = self._queues.decide(now)
        for id in decision.yields:
            self._ask(now, self._records[id])
        for id, place in decision.starts.items():
            self._start(now, self._records[id], place)

    def _ask(self, now: float, job: JobRecord) -> None:
        """Ask a job to yield. A job that does not resume is never asked, and ends with its node."""
        if job.resumes and job.state in ("starting", "running"):
            job = self._write(now, job, "ask", state="yielding")
            self._decided.append(partial(self._acts.ask_yield, job))

    def _start(self, now: float, job: JobRecord, place: Mapping[str, Gpus]) -> None:
        job = replace(job, state="starting", generation=job.generation + 1, place=place)
        job = self._write(now, job, "start", str(place))
        self._decided.append(partial(self._acts.start, job))

    def _kill(self, lease: Lease) -> None:
        self._decided.append(partial(self._acts.kill, lease))

    def _close(self, now: float, job: JobRecord) -> None:
        if not job.handle and not job.reason:
            job = replace(job, reason=NOT_STARTED, sentence=UNKNOWN)
        self._kill(lease_of(job))  # processes that still run
        try:
            ending = self._acts.close(job)
        except DirectoryLost as error:
            self._settle(now, job, without_directory(job, error))
        except OSError as error:  # no other generation may start before this one is closed
            if job.is_cancelled:
                self._settle(now, job, Outcome(CANCELLED, "cancelled"))
            else:
                self._note(now, job, f"its generation cannot be closed: {cause(error)}")
        else:
            job = self._count(now, job, ending.computed)
            kept = {"resume": ending.newest or job.resume, "first": first_of(job, now)}
            self._settle(now, job, outcome_of(job, ending), job.sentence, **kept)

    def _settle(
        self, now: float, job: JobRecord, outcome: Outcome, detail: str = "", **kept: Any
    ) -> JobRecord:
        """Write the outcome of a job that has no generation any more."""
        gangs = self._queues.of(job)
        gangs.finish(now, job.id)
        self._sights.pop(job.id, None)
        self._counted.pop(job.id, None)
        detail = detail or outcome.sentence
        if outcome.state == "queued" and outcome.what in REFUSALS:
            because = f": {detail}" if detail else ""
            self._postponed.add(now, job.id, f"{REFUSALS[outcome.what]}{because}")
        elif outcome.state == "queued":
            gangs.request(now, job)
        fresh = {"place": {}, "handle": "", "told": 0.0, "reason": ""}
        job = self._write(now, settled(job, outcome, now), outcome.what, detail, **fresh, **kept)
        if job.is_over:
            gangs.close(now, job.id)
            self._postponed.forget(job.id)
            self._learn()
        return job

    def _count(self, now: float, job: JobRecord, computed: float) -> JobRecord:
        if computed <= job.told:
            return job
        more = computed - job.told
        if not (job.spec.tells or job.keeps):  # the times of its files leap with their clock
            before = max(self._counted.get(job.id, 0.0), job.since)
            more = min(more, max(0.0, now - before) + self._bounds.beat)
        self._counted[job.id] = now
        gangs = self._queues.of(job)
        gangs.served(now, job, more)
        # Both values change together, since they may be saved before the next change of state.
        # Otherwise the time would be lost or counted twice if the service is killed in between.
        job = replace(job, told=computed, core=gangs.progress(job.id), saved=now)
        return self._records.count(now, job, more * job.spec.gpus)

    def _move(self, now: float, job: JobRecord, where: Mapping[str, int]) -> JobRecord:
        """Follow the engine's choice of GPUs. First write that they are the job's: as GPUs of
        others, the job would be asked to leave them."""
        job = self._write(now, job, "moved", str(where), place=where)
        ours = held(self._records.active())
        self._queues.set_nodes(now, usable(self.nodes, ours))
        self._queues.of(job).moved(now, job.id, where)
        return job

    def _note(self, now: float, job: JobRecord, sentence: str) -> None:
        """Write a trouble once, although each step meets it."""
        if self._troubles.is_new(job.id, sentence):
            self._write(now, job, "note", sentence)

    def _write(
        self, now: float, job: JobRecord, what: str, detail: str = "", **changes: Any
    ) -> JobRecord:
        changes |= {"core": self._queues.of(job).progress(job.id), "saved": now}
        return self._records.write(now, replace(job, **changes), what, detail)


def least_of(costs: Sequence[float], least: float, most: float) -> float:
    """Return the least seconds that a turn computes, given the costs of restarts."""
    restart = statistics.median(costs) if costs else 0.0
    return max(least, min(TURN_OF_RESTARTS * restart, most))


def is_moved(job: JobRecord, where: Mapping[str, int]) -> bool:
    """Whether the engine has chosen other GPUs for the job, the same number in all. An answer with
    another number is not trusted."""
    are_all = sum(where.values()) == job.spec.gpus and all(n > 0 for n in where.values())
    return are_all and {**where} != {**job.place}


def usable(
    nodes: Mapping[str, Node],
    now: Mapping[str, Gpus],
    before: Mapping[str, Gpus] = MappingProxyType({}),
) -> dict[str, Capacity]:
    """Return the GPUs of each node that jobs may have. `now` are the GPUs of jobs now, and `before`
    those at the look."""
    return {
        name: capacity(node, gpus_for_jobs(node, now.get(name, 0), before.get(name, 0)))
        for name, node in nodes.items()
    }


def gpus_for_jobs(node: Node, now: Gpus, before: Gpus) -> Gpus:
    """Return all GPUs except those that other programs use, or that processes of closed generations
    have not released. A silent node has only those of its jobs, since it starts nothing."""
    if not node.alive:
        return 0
    if node.is_silent:
        return min(now, node.gpus)
    return max(0, node.gpus - max(0, node.used - max(now, before)))


def held(active: Iterable[JobRecord]) -> dict[str, Gpus]:
    """Return the GPUs that jobs have on each node."""
    ours: dict[str, Gpus] = {}
    for job in active:
        for name, gpus in job.place.items():
            ours[name] = plain(ours.get(name, 0) + gpus)
    return ours


def settled(job: JobRecord, outcome: Outcome, now: float) -> JobRecord:
    return replace(
        job,
        state=outcome.state,
        losses=outcome.losses,
        sentence=outcome.sentence if outcome.state in OVER else "",
        yields=job.yields + (outcome.what == "yielded"),
        ended=now if outcome.state in OVER else None,
    )


def without_directory(job: JobRecord, error: DirectoryLost) -> Outcome:
    if job.is_cancelled:
        return Outcome(CANCELLED, "cancelled")
    return Outcome("failed", "failed", sentence=str(error))


def first_of(job: JobRecord, now: float) -> float | None:
    return now if job.first is None and job.told > 0 else job.first
