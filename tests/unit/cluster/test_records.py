"""The journal of a cluster: its content is on disk, complete, and belongs to one service. Also the
present jobs, their queue, postponed jobs, and the removal of old records."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster.engines.engine import PART, Capacity, Lease, Node
from jupyter_gpushare.cluster.hands.hands import Hands
from jupyter_gpushare.cluster.jobs import JobRecord, Spec
from jupyter_gpushare.cluster.journal import MIGRATIONS, HourOfJob, JobEvent, Journal
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.pruning import DAY_SECONDS, Pruning, Retention
from jupyter_gpushare.cluster.queues.gangs import Gangs
from jupyter_gpushare.cluster.queues.postponed import Postponed
from jupyter_gpushare.cluster.records import Records
from jupyter_gpushare.cluster.service import least_of
from jupyter_gpushare.errors import LimitExceeded
from jupyter_gpushare.wire.jobs import LookAtUse, UseBy

from .work import Makes, opened

A = JobRecord(
    id="a", user="mia", directory="/jobs/a", spec=Spec(2, nodes=1, options=("-Alab",)), submitted=1
)
RUNS = JobRecord(
    id="b",
    user="noah",
    directory="/jobs/b",
    spec=Spec(1, tells=True),
    submitted=0.5,
    state="running",
    generation=3,
    place={"n0": 1},
    handle="17",
    resume="g2.closed/it-5",
    told=1.25,
    first=0.75,
    core={"queue": 1, "run": 2.5},
)
RULES = GangRules(told=True, tick=0, thresholds=[10.0])


def job(id: str = "a", gpus: int = 1, **fields: Any) -> JobRecord:
    made = {"id": id, "user": "", "directory": "/a", "submitted": 1.0}
    return JobRecord(**{**made, "spec": Spec(gpus, resumes=True), **fields})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


def event(job: JobRecord, what: str) -> JobEvent:
    return JobEvent(2.0, job.id, job.generation, what)


def test_jobs_come_back_as_they_were(path: Path) -> None:
    journal = Journal(path)
    journal.write(A, event(A, "submitted"))
    journal.write(RUNS, event(RUNS, "computes"))
    files = {file.name for file in path.parent.iterdir()}
    assert files == {path.name, "cluster.lock", f"{path.name}-journal"}  # none of shared memory
    journal.close()
    again = Journal(path)
    assert again.present() == [RUNS, A]  # in the order in which they were submitted
    assert again.job("a") == A
    assert again.job("c") is None
    again.close()


def test_an_arrow_has_its_event_in_the_same_transaction(journal: Journal, path: Path) -> None:
    journal.write(A, event(A, "submitted"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'x'); END")
    with pytest.raises(sqlite3.Error):
        journal.write(RUNS, event(RUNS, "computes"))
    assert journal.present() == [A]
    assert [one.what for one in journal.events("a")] == ["submitted"]
    other.execute("DROP TRIGGER full")
    other.close()
    journal.write(RUNS, event(RUNS, "computes"))
    assert journal.present() == [RUNS, A]


def test_nodes_keep_their_order_and_the_most_that_they_have_had(journal: Journal) -> None:
    journal.set_nodes({"n1": Capacity(4), "n0": Capacity(2)}, JobEvent(0, "", 0, "nodes"))
    journal.set_nodes({"n0": Capacity(3, 1), "n2": Capacity(0, 1)}, JobEvent(1, "", 0, "nodes"))
    assert list(journal.nodes().items()) == [("n1", (4, 0)), ("n0", (3, 1)), ("n2", (0, 1))]


def test_a_second_service_is_told_where_the_first_one_is(path: Path) -> None:
    first = Journal(path, "/run/a.sock")
    where = rf"process {os.getpid()} on {gethostname()}, which listens on /run/a\.sock; one dir"
    for _ in range(2):
        with pytest.raises(LimitExceeded, match=rf"another cluster service has .*: {where}"):
            Journal(path, "/run/b.sock")
    first.close()


def test_a_journal_is_for_its_user_alone(journal: Journal, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_journal_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    newer = sqlite3.connect(path, isolation_level=None)
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(sqlite3.DatabaseError, match="of a newer version"):
        Journal(path)
    assert newer.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    newer.close()


def test_each_journal_has_a_cluster_of_its_own(path: Path, tmp_path: Path) -> None:
    """Otherwise a service would end the jobs of another one."""
    journal, other = Journal(path), Journal(tmp_path / "other" / "cluster.sqlite")
    name = journal.cluster()
    assert PART.fullmatch(name)
    assert name != other.cluster()
    journal.close()
    other.close()
    again = Journal(path)
    assert again.cluster() == name
    again.close()


# --- the jobs that are present --------------------------------------------------------------------


def test_an_arrow_is_in_the_journal_and_has_its_time(journal: Journal) -> None:
    records = Records(journal)
    records.write(2.0, job(), "submitted")
    started = records.write(3.0, replace(job(), state="starting", generation=1), "start", "n0")
    assert records["a"] == started == journal.job("a")
    assert started.since == 3.0
    again = records.write(4.0, replace(started, handle="h"), "started")
    assert again.since == 3.0  # it is in the same state
    assert [tuple(event) for event in journal.events("a")] == [
        (2.0, "a", 0, "submitted", ""),
        (3.0, "a", 1, "start", "n0"),
        (4.0, "a", 1, "started", ""),
    ]
    assert records.leases() == {Lease("a", 1, "h")}
    assert records.active_at("a", 1) == again
    assert records.active_at("a", 2) is None


def uses(journal: Journal, by: UseBy = "job", user: str | None = None) -> list[tuple[Any, ...]]:
    return [astuple(row) for row in journal.uses(LookAtUse(0.0, 1e10, by), user)]


def test_what_jobs_use_is_counted_by_hour_and_once(journal: Journal) -> None:
    records = Records(journal)
    records.write(2.0, job(), "submitted")
    records.write(2.0, job("b", user="ada"), "submitted")
    records.count(3599.0, replace(records["a"], told=5.0), 10.0)
    records.count(3601.0, replace(records["a"], told=7.0), 4.0)
    assert uses(journal) == []
    records = Records(journal)  # the service was killed: so it is counted again, as it is told
    records.count(3601.0, replace(records["a"], told=7.0), 14.0)
    records.write(3602.0, replace(records["a"], state="done"), "done")
    records.count(3602.0, replace(records["b"], told=1.0), 1.5)
    records.save()
    records.count(7201.0, replace(records["b"], told=2.0), 1.5)
    records.save()
    records.save()
    assert uses(journal) == [("a", 14.0, 1), ("b", 3.0, 1)]
    assert uses(journal, "user") == [("", 14.0, 1), ("ada", 3.0, 1)]
    assert uses(journal, "job", "ada") == [("b", 3.0, 1)]
    assert [row.gpu_seconds for row in journal.uses(LookAtUse(7200, 1e10, "job"), None)] == [1.5]
    assert sum(seconds for _, seconds, _ in uses(journal, "day")) == 17.0
    assert Records(journal)["b"].told == 2.0


def test_a_turn_is_ten_times_as_long_as_restarts_have_cost(journal: Journal) -> None:
    def happen(generation: int, **events: float) -> None:
        for what, at in events.items():
            journal.note(JobEvent(at, "a", generation, what))

    happen(1, start=0, computes=9, ask=20, yielded=22)  # the first start is no restart
    happen(2, start=30, computes=35, lost=36)
    happen(3, start=60, computes=62, ask=70, yielded=71)
    happen(4, start=80, computes=82)
    assert journal.restarts(20) == [3, 7]
    assert journal.restarts(1) == [3]
    costs: list[list[float]] = [[], [1], [3, 7, 100], [100]]
    assert [least_of(each, 30, 600) for each in costs] == [30, 30, 70, 600]
    assert least_of([100], 30, 0) == 30


def test_it_is_written_each_minute_at_the_latest(journal: Journal) -> None:
    records = Records(journal)
    records.write(1e9, job(), "submitted")
    for now in (1e9, 1e9 + 59, 1e9 + 61):
        records.count(now, replace(records["a"], told=1.0), 1.0)
        records.save_now_and_then(now)
    assert uses(journal) == [("a", 3.0, 1)]


def test_a_job_that_is_over_is_in_the_journal_alone(journal: Journal) -> None:
    records = Records(journal)
    records.write(2.0, job(), "submitted")
    done = records.write(3.0, replace(job(), state="done"), "done")
    assert records.all() == []
    assert records.get("a") == done
    assert records.get("b") is None
    assert Records(journal).all() == []


def test_what_the_journal_does_not_take_is_not_kept(journal: Journal, path: Path) -> None:
    records = Records(journal)
    records.write(2.0, job(), "submitted")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError):
        records.write(3.0, replace(job(), state="done"), "done")
    other.close()
    assert records["a"].state == "queued"


def test_what_is_kept_is_written_with_the_next_arrow(journal: Journal) -> None:
    records = Records(journal)
    records.write(2.0, job(), "submitted")
    kept = records.count(3.0, replace(records["a"], told=5.0), 5.0)
    assert records["a"].told == 5.0
    assert journal.job("a") == replace(kept, told=0.0)
    records.write(3.0, records["a"], "note")
    assert journal.job("a") == kept


# --- what is old ----------------------------------------------------------------------------------


def left(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*t-*")}


def end(journal: Journal, directory: Path, day: float) -> None:
    """End a job whose generation has left files."""
    opened(directory)
    for name in ("it-3", ".it-4.part", "result-1"):
        (directory / "g1" / name).touch()
    id, at = directory.name, day * DAY_SECONDS
    over = job(id, directory=str(directory), state="done", ended=at)
    journal.write(over, JobEvent(at, id, 1, "done"), [HourOfJob(0, "", id, 1.0)])


def test_what_is_old_is_removed_and_gpu_time_is_kept_longest(
    journal: Journal, make_job: Makes
) -> None:
    pruning, month = Pruning(journal, Hands(), Retention(30.0, 50.0)), 40 * DAY_SECONDS
    old, new = make_job(1, 0, name="old"), make_job(1, 0, name="new")
    end(journal, old, 9.0)
    end(journal, new, 11.0)
    seen = JobEvent(9 * DAY_SECONDS, "", 0, "nodes")
    journal.set_nodes(dict.fromkeys("abc", Capacity(1)), seen)
    for _ in range(2):
        pruning.forget_one(month)
    assert pruning.prune(month, {"a": Node(1)}, ["b"])
    assert not pruning.prune(month + 3599, {}, [])
    assert [job.id for job in journal.newest(9)] == ["new"]
    assert [len(journal.events(id)) for id in ("old", "new", "")] == [0, 1, 0]
    assert [*journal.nodes()] == ["a", "b"]
    assert (left(old), (old / "job.json").exists()) == ({"g1/result-1"}, False)
    assert (len(left(new)), (new / "job.json").exists()) == (3, True)
    assert len(journal.uses(LookAtUse(0.0, 1e10, "job"), None)) == 2
    assert pruning.prune(75 * DAY_SECONDS, {}, [])
    assert (journal.uses(LookAtUse(0.0, 1e10, "job"), None), journal.nodes()) == ([], {})


def test_a_generation_keeps_the_newest_two_checkpoints_before_it_and_its_own(
    make_job: Makes,
) -> None:
    there = make_job(1, 0)
    for number in (1, 2, 10):
        (there / f"g{number}.closed").mkdir()
        for name in ("it-9", "it-10", "result-1"):
            (there / f"g{number}.closed" / name).mkdir()
    generation.remove_old(there, 10, "g1.closed/it-9")
    results = {f"g{number}.closed/result-1" for number in (1, 2, 10)}
    tens = {"g10.closed/it-9", "g10.closed/it-10"}
    assert left(there) - results - tens == {"g1.closed/it-9", "g2.closed/it-9", "g2.closed/it-10"}


# --- the queue ------------------------------------------------------------------------------------


def gangs(**nodes: int) -> Gangs:
    return Gangs(nodes, "las", RULES)


def test_jobs_start_on_nodes_by_name() -> None:
    queue = gangs(n0=2, n1=2)
    queue.request(1.0, job("a", 3))
    queue.request(1.0, job("b", 2))
    decision = queue.decide(1.0)
    assert decision.starts == {"a": {"n0": 2, "n1": 1}}
    assert [*decision.yields] == []
    queue.set_nodes(2.0, {"n2": 2, "n1": 2, "n0": 2})  # in any order
    assert queue.decide(2.0).starts == {"b": {"n1": 1, "n2": 1}}
    queue.set_nodes(3.0, {"n1": 2, "n2": 2})  # n0 is gone
    assert [*queue.decide(3.0).yields] == ["a"]


def test_a_queue_of_the_jobs_of_the_journal_decides_as_the_one_before_it() -> None:
    before = gangs(n0=2, n1=2)
    jobs = {id: job(id, gpus) for id, gpus in (("a", 3), ("b", 2), ("c", 1))}
    for each in jobs.values():
        before.request(1.0, each)
    starts = before.decide(1.0).starts
    assert starts.keys() == {"a", "c"}
    before.served(5.0, jobs["a"], 5.0)  # seconds on 3 GPUs: it is the oldest now
    assert before.progress("a")["run"] == 5.0
    assert [*before.decide(5.0).yields] == ["a"]
    states = {"a": "yielding", "b": "queued", "c": "running"}
    rows = [
        replace(each, state=states[id], place=starts.get(id, {}), core=before.progress(id), saved=5)
        for id, each in jobs.items()
    ]
    after = gangs(n0=2, n1=2)
    after.restore(rows)
    for queue in (before, after):
        queue.set_nodes(6.0, {"n0": 2, "n1": 2})
        assert queue.decide(6.0) == ({}, [])  # it was asked already
        queue.finish(7.0, "a")
        queue.request(7.0, jobs["a"])
        assert queue.decide(7.0).starts == {"b": {"n0": 1, "n1": 1}}
    assert after.progress("a") == before.progress("a")


def test_a_turn_lasts_for_the_least_that_the_queue_was_told_last() -> None:
    queue = gangs(n0=1)
    queue.request(1.0, job("a"))
    queue.decide(1.0)
    queue.served(21.0, job("a"), 20.0)
    queue.request(21.0, job("b"))
    for least, yields in ((20.1, []), (20.0, ["a"])):
        queue.set_least(least)
        assert [*queue.decide(21.0).yields] == yields


def test_gittins_serves_first_the_job_that_probably_ends_soonest(journal: Journal) -> None:
    """Three former jobs have computed 4 GPU-seconds. A job that is not over does not count."""
    for id, ended in (("x", 3.0), ("y", 3.0), ("z", 3.0), ("runs", None)):
        uses = [HourOfJob(hour, "", id, 2.0 if ended else 90.0) for hour in (0, 3600)]
        journal.write(
            job(id, state="done" if ended else "running", ended=ended), event(job(id), "done"), uses
        )
    journal.forget("z")
    assert journal.services(9) == [4.0, 4.0, 4.0]
    for policy, first in (("las", "new"), ("gittins", "old")):
        queue = Gangs({"n0": 1}, policy, GangRules(told=True, tick=0, thresholds=[50], quantum=2))
        queue.set_known(journal.services(9))
        queue.restore([job("old", core={"run": 3.0, "ticket": 2}), job("new", core={"ticket": 1})])
        assert queue.decide(1.0).starts.keys() == {first}


def test_a_job_with_one_large_tensor_gets_as_few_nodes_as_can_be() -> None:
    places = []
    for skew in (0.4, 0.6):
        queue = gangs(n0=1, n1=2, n2=1)
        queue.request(1.0, job("a", 2, skew=skew))
        places.append(queue.decide(1.0).starts["a"])
    assert [len(place) for place in places] == [2, 1]


def test_a_job_that_waits_has_waited_while_there_was_no_service() -> None:
    queue = gangs(n0=1)
    core = {"run": 20.0, "queue": 1, "ticket": 1, "waited": 3.0, "started": True}
    queue.restore([job("a", core=core, saved=100.0), job("b", core={}, saved=90.0)])
    queue.set_nodes(110.0, {})
    assert queue.progress("a")["waited"] == 13.0
    assert queue.progress("b")["waited_in_all"] == 20.0


# --- postponed ------------------------------------------------------------------------------------


def test_each_wait_is_twice_as_long_up_to_the_most() -> None:
    postponed = Postponed(2.0, 5.0)
    now = 0.0
    for seconds in (2.0, 4.0, 5.0, 5.0):
        postponed.add(now, "a", "it is full")
        assert postponed.due(now + seconds - 0.1) == []
        assert postponed.refusal("a") == "it is full"
        now += seconds
        assert postponed.due(now) == ["a"]
        assert postponed.due(now) == []
    postponed.add(now, "a", "it is full")
    postponed.forget("a")
    assert (postponed.refusal("a"), postponed.due(now + 100.0)) == ("", [])
    postponed.add(now, "a", "it is full")
    assert postponed.due(now + 2.0) == ["a"]
