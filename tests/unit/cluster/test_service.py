"""The service on the engine of this machine, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster import service
from jupyter_gpushare.cluster.engines.engine import Lease, Node, Start, Status
from jupyter_gpushare.cluster.jobs import NO_ROOM, NOT_STARTED, OVERDUE, RANK_LOST, Spec
from jupyter_gpushare.cluster.journal import JobEvent
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.loop import ServiceLoop
from jupyter_gpushare.cluster.service import ClusterService
from jupyter_gpushare.cluster.views import cluster_view
from jupyter_gpushare.errors import ConnectionLost, DoesNotFit, InvalidValue, UnknownJob
from jupyter_gpushare.settings import JobPolicy
from jupyter_gpushare.wire.jobs import JobView

from ...polling import until
from .launch.test_launcher import BEGETS, SLEEPS, lives, pids
from .site import LONG, SECONDS, STEP, Site, Troubled
from .work import Makes, generations, iterations, made, opened

ENDLESS = 100_000


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, getattr(request, "param", "n0=2 n1=2"))
    yield site
    site.close()


@pytest.mark.system
def test_what_a_job_has_computed_is_known_after_it_has_starved(site: Site) -> None:
    site.rules = GangRules(told=True, tick=0, thresholds=[0.1], knob=0.1)
    site.restart()
    site.begin("a", LONG, STEP, attains=0.2, gpus=4)
    site.submit("b", LONG, STEP, gpus=4)
    site.until(lambda: site.job("a").core["promoted"] > 0)
    site.finish(a=LONG, b=LONG)
    assert site.service.run_seconds(site.job("a")) == pytest.approx(LONG * STEP)


@pytest.mark.system
@pytest.mark.parametrize("site", ["n0=2 n1=1/4"], indirect=True)
def test_jobs_of_parts_share_a_gpu_of_a_node_that_has_shards(site: Site) -> None:
    for id, gpus in (("a", 0.25), ("b", 0.5), ("c", 0.5)):
        site.submit(id, ENDLESS, STEP, gpus=gpus)
    site.submit("whole", 20, STEP, gpus=2)
    site.until(lambda: all(map(site.computes, "ab")))
    assert [site.job(id).place for id in "abc"] == [{"n1": 0.25}, {"n1": 0.5}, {}]
    assert site.ranks("b")[0].environ()["CUDA_VISIBLE_DEVICES"] == "2"
    view = seen(site, "c")
    assert view.sentence == "waits for 0.5 of a GPU; 0.25 of GPUs with shards are free"
    assert (view.gpus, view.position) == (0.5, 1)
    site.restart()
    site.until(lambda: site.service.nodes["n1"].used == 0.75)
    with pytest.raises(DoesNotFit, match=r"a job of 3 GPUs never fits: .* at most n0 2$"):
        site.submit("wide", 1, STEP, gpus=3)
    site.service.cancel("b")
    site.until(lambda: site.computes("c"))
    site.until_state(whole="done")
    assert [site.job(id).generation for id in "abc"] == [1, 1, 1]
    for id in "ac":
        site.service.cancel(id)
    site.until_state(a="cancelled", c="cancelled")


@pytest.mark.system
def test_gpus_are_kept_for_the_first_that_waits_and_others_are_told(site: Site) -> None:
    """`wide` lacks one of four GPUs, which `short` has. On the other three `stopped` would run for
    its least turn."""
    site.rules = GangRules(told=True, tick=0, thresholds=[0.2], least=1000.0)
    site.restart()
    site.submit("short", 2000, STEP, resumes=False)
    site.begin("stopped", 2000, STEP, attains=0.2, gpus=3)
    site.engine.said = {"n0": Node(0), "n1": Node(2)}
    site.until_state(stopped="queued")
    site.submit("wide", 10, STEP, gpus=4)
    site.engine.said = {}
    site.until(lambda: "kept" in seen(site, "stopped").sentence)
    assert seen(site, "stopped").sentence.startswith(
        "waits for 3 GPUs, number 2 of 2 in line; 3 are free, and kept for a job before it; it"
    )
    assert seen(site, "wide").sentence == "waits for 4 GPUs, number 1 of 2 in line; 3 are free"
    jobs = cluster_view(site.service, "", "", True, "", 0.0).jobs
    assert [job.id for job in jobs] == ["short", "wide", "stopped"]
    site.restart()
    site.until(lambda: "kept" in seen(site, "stopped").sentence)
    site.service.cancel("short")
    site.finish(wide=10)


def seen(site: Site, id: str, user: str = "") -> JobView:
    (view,) = cluster_view(site.service, user, id, False, "", 0.0).jobs
    return view


@pytest.mark.system
def test_a_job_computes_for_longer_before_it_is_asked_where_restarts_have_cost_much(
    site: Site,
) -> None:
    """Restarts have cost 100 s here."""
    for number, what in enumerate(("ask", "yielded", "start", "computes")):
        ended = time.time() + (100 if what == "computes" else 0)
        site.journal.note(JobEvent(ended, "x", 1 + number // 2, what))
    site.restart(most_least=500.0)
    site.begin("long", LONG, STEP, attains=1, gpus=4)
    site.submit("short", 5, STEP, gpus=2)
    site.finish(long=LONG)
    assert "ask" not in site.events("long")
    site.until_state(short="done")


@pytest.mark.system
@pytest.mark.parametrize("policy", ["las", "gittins"])
@pytest.mark.parametrize("site", ["n0=1"], indirect=True)
def test_gittins_asks_a_job_to_yield_that_outlasts_all_that_have_finished(
    site: Site, policy: JobPolicy
) -> None:
    site.policy, site.rules = policy, GangRules(told=True, tick=0, thresholds=[1000])
    site.restart()
    for id in ("a", "b"):
        site.submit(id, 5, STEP)
    site.until_state(a="done", b="done")
    site.begin("long", LONG, STEP, attains=0.5)
    site.submit("short", 5, STEP)
    if policy == "gittins":
        site.until_state(short="done")
    else:
        site.service.step()
    site.finish(long=LONG)
    site.until_state(short="done")
    assert ("ask" in site.events("long")) == (policy == "gittins")


def test_a_job_is_not_charged_for_a_leap_of_the_clock_of_its_files(site: Site) -> None:
    directory = site.begin("a", ENDLESS, STEP, tells=False)
    site.until(lambda: site.service.run_seconds(site.job("a")) > 0)
    before = time.time() - 36_000
    os.utime(directory / "g1" / generation.MASTER, (before, before))
    site.steps()
    charged = site.service.run_seconds(site.job("a"))
    assert charged < 3600
    site.until(lambda: site.service.run_seconds(site.job("a")) > charged)


def test_a_job_that_does_not_resume_is_never_asked_to_yield(site: Site) -> None:
    """This holds for a younger job that waits, and on a node that is being drained."""
    site.begin("stays", LONG, STEP, attains=1, gpus=4, resumes=False)
    site.submit("short", 5, STEP, gpus=2)
    site.steps(10)
    site.engine.said = {"n0": Node(0)}
    site.steps(10)
    site.finish(stays=LONG)
    assert "ask" not in site.events("stays")
    site.until_state(short="done")


# --- what people ask for --------------------------------------------------------------------------


def test_the_same_job_is_submitted_once(site: Site) -> None:
    site.submit("a", LONG, STEP)
    site.submit("a", LONG, STEP)
    assert site.events("a") == ["submitted"]
    site.until_state(a="running")
    site.finish(a=LONG)
    site.submit("a", LONG, STEP)
    assert site.events("a") == ["submitted", "start", "started", "computes", "done"]
    found = site.job("a")
    assert (found.state, found.submitted < found.first < found.ended) == ("done", True)
    with pytest.raises(InvalidValue, match="another job of the id a"):
        site.service.submit("a", "other", str(site.directory("a")), Spec(1))


@pytest.mark.parametrize("id", ["", "A", "a/b", "a.b", "x" * 65])
def test_an_id_that_an_engine_could_not_name_is_refused(site: Site, id: str) -> None:
    with pytest.raises(InvalidValue, match="a-z, 0-9"):
        site.service.submit(id, "", "/tmp", Spec(1))


def test_a_job_is_found_that_has_not_ended_whatever_came_after_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_JOBS", 1)
    for id in ("first", "second"):
        site.service.submit(id, "", "/tmp", Spec(1))
    assert [job.id for job in site.service.jobs(all=True)] == ["first", "second"]
    assert site.service.job("fir").id == "first"
    site.service.cancel("second")
    assert [job.id for job in site.service.jobs(all=True)] == ["first", "second"]
    site.service.submit("third", "", "/tmp", Spec(1))
    assert [job.id for job in site.service.jobs(all=True)] == ["first", "third"]


def test_no_id_is_the_beginning_of_none(site: Site) -> None:
    site.service.submit("a", "", "/tmp", Spec(1))
    with pytest.raises(UnknownJob):
        site.service.cancel("")


def test_a_job_that_the_nodes_could_never_hold_is_refused(site: Site) -> None:
    site.service.step()
    at_most = "the nodes have at most n0 2, n1 2"
    wishes = ((5, 0, at_most), (3, 1, at_most), (0.25, 0, "no node has a GPU in shards"))
    for gpus, nodes, sentence in wishes:
        with pytest.raises(DoesNotFit, match=f"never fits: {sentence}"):
            site.submit("a", 5, STEP, gpus=gpus, nodes=nodes)
    assert site.journal.job("a") is None
    site.engine.said = {"n2": Node(4, used=3)}  # what others use may become free
    site.service.step()
    site.submit("a", 5, STEP, gpus=8)
    site.service.step()
    assert site.state("a") == "queued"


# --- how generations end --------------------------------------------------------------------------


def test_a_job_that_raises_says_its_error_in_a_line(site: Site) -> None:
    site.submit("a", sys.executable, "-c", "def f():\n    undefined\nf()", resumes=False)
    site.until_state(a="failed")
    view = seen(site, "a")
    assert view.sentence.startswith("it exited with status 1: Traceback (most recent call last):")
    assert view.line == "it exited with status 1: NameError: name 'undefined' is not defined"


def test_a_launcher_that_can_write_nothing_says_so(site: Site) -> None:
    """No file can grow, as on a full disk."""
    site.submit("a", sys.executable, "-c", BEGETS, resumes=False)
    site.until((site.directory("a") / "work" / "pids").exists)
    rank = psutil.Process(pids(site.directory("a"))[0])
    rank.parent().rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    rank.kill()
    site.until_state(a="failed")
    assert "n0: File too large" in site.job("a").sentence


@pytest.mark.system
@pytest.mark.parametrize("lost", ["rank", "launcher"])
def test_a_gang_that_has_lost_a_part_is_ended_whole_and_goes_on(site: Site, lost: str) -> None:
    """The engine sees that ranks of the gang still run after one launcher died."""
    count = 4 * LONG
    if lost == "launcher":
        site.restart(silent=3.0)
    job = site.submit("a", count, STEP, gpus=4)
    site.until(lambda: generation.newest(job / "g1") != "")
    (rank,) = [rank for rank in site.ranks("a") if rank.environ()["RANK"] == "1"]
    (rank if lost == "rank" else rank.parent()).kill()
    site.until(lambda: site.job("a").generation == 2)
    assert site.reasons("a") == [RANK_LOST]
    site.hurry("a")
    site.until_state(a="done")
    assert (site.job("a").generation, site.events("a").count("lost")) == (2, 1)
    assert {*site.computed("a")} == {*range(1, count + 1)}
    assert resumed_where_it_had_saved(site, "a")


def resumed_where_it_had_saved(site: Site, id: str) -> bool:
    """Check that the second generation began after the checkpoint of the first one."""
    first, second = generations(job := site.directory(id))
    saved = json.loads((job / generation.newest(first)).read_text())["iteration"]
    return iterations([second])[0] == saved + 1


def test_a_job_that_does_not_leave_in_its_lease_is_killed(site: Site) -> None:
    site.restart(lease=0.2)
    site.submit("a", sys.executable, "-c", SLEEPS, gpus=4)
    site.until(lambda: bool(site.ranks("a")))
    site.engine.said = {"n0": Node(0)}
    site.until(lambda: "lost" in site.events("a"))
    assert site.events("a")[-3:] == ["ask", "end", "lost"]
    assert site.reasons("a") == [OVERDUE]
    assert not site.ranks("a")


def test_what_is_given_up_is_killed_once_its_node_answers(site: Site) -> None:
    site.restart(sweep=0.1, kill=0.1)
    job = site.submit("a", sys.executable, "-c", BEGETS, gpus=2)
    site.until(lambda: site.job("a").handle != "")
    pids(job)
    frozen = site.processes("a")  # so they do not notice that it is closed
    for process in frozen:
        process.suspend()
    site.engine.cannot_kill = True
    site.service.cancel("a")
    site.until_state(a="cancelled")  # after the time that killing may take
    site.engine.cannot_kill = False
    site.until(lambda: not any(lives(process.pid) for process in frozen))


# --- an engine that refuses, forgets, or does not answer ------------------------------------------


def test_a_job_that_finds_no_room_waits_and_costs_a_number(site: Site, make_job: Makes) -> None:
    """Another program takes the GPUs after the engine was asked for its nodes."""
    neighbor = Troubled(f"{site.journal.cluster()}-2", "n0=2 n1=2")
    other = make_job(sys.executable, "-c", BEGETS, name="other")
    opened(other, n0=2)
    taken = neighbor.start(Start(f"{site.journal.cluster()}-2", "other", 1, other, {"n0": 2}))
    pids(other)
    site.engine.said = {"n0": Node(2), "n1": Node(2)}
    site.submit("a", 5, STEP, gpus=3)
    site.until(lambda: site.events("a").count("no room") == 2)
    neighbor.kill(taken)
    site.finish(a=5)
    assert site.job("a").losses == 0
    assert site.job("a").generation >= 3
    starts = [event.at for event in site.journal.events("a") if event.what == "start"]
    assert starts[2] - starts[1] >= 2 * site.bounds.postponed


@pytest.mark.parametrize(("state", "reason"), [("pending", NO_ROOM), ("running", NOT_STARTED)])
def test_a_job_that_the_engine_starts_just_as_it_is_given_up_does_nothing_and_is_started_again(
    tmp_path: Path, state: str, reason: str
) -> None:
    """Its launcher begins once it may, which is after the look and before the kill."""
    may_begin, python = tmp_path / "may_begin", tmp_path / "python"
    waits = f"until [ -e {may_begin} ]; do sleep 0.01; done"
    python.write_text(f'#!/bin/sh\n{waits}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def make_engine(cluster: str) -> Troubled:
        return Troubled(cluster, "n0=2", str(python))

    with contextlib.closing(Site(tmp_path, make_engine=make_engine)) as site:
        site.restart(pending=0.1, begin=0.1)
        job, kill = site.submit("a", 20, STEP, resumes=False), site.engine.kill

        def kill_late(lease: Lease) -> None:
            may_begin.touch()
            until(lambda: not site.engine.poll([lease]) or (job / "g1" / "ran").exists())
            kill(lease)

        site.engine.kill, site.engine.statuses = kill_late, {"a": Status(state)}
        site.until(lambda: reason in site.events("a") or site.job("a").is_over)
        assert not site.job("a").is_over
        site.engine.statuses = {}
        site.restart(begin=10.0)
        site.finish(a=20)
        assert site.job("a").generation == 2


@pytest.mark.system
@pytest.mark.parametrize("verb", ["nodes", "ask_yield", "kill", "start"])
def test_a_job_comes_and_goes_while_the_engine_does_not_answer(site: Site, verb: str) -> None:
    """The long job yields to the short one, so the engine is asked for its nodes, to yield, to kill
    and to start."""
    site.begin("long", LONG, 0.02, attains=1, gpus=4)
    site.answer_seconds = 2 * SECONDS
    with running(site) as loop, ThreadPoolExecutor(1) as people:

        def submitted(id: str) -> str:
            spec, directory = Spec(2, resumes=True, tells=True), made(site.directory(id), 10, STEP)
            return loop.ask(lambda it: it.submit(id, "", str(directory), spec)).state

        with site.engine.hanging(verb) as is_asked:
            submitted("short")
            assert is_asked.wait(SECONDS)
            assert people.submit(submitted, "a").result(SECONDS) == "queued"
            cancelled = people.submit(loop.ask, lambda it: it.cancel("a"))
            assert cancelled.result(SECONDS).state == "cancelled"
        site.hurry("long")
        until(lambda: not loop.ask(ClusterService.jobs), SECONDS)
    assert site.is_whole("short", 10)
    assert site.is_whole("long", LONG)
    assert site.job("long").losses == 0


@contextlib.contextmanager
def running(site: Site) -> Iterator[ServiceLoop]:
    """Run the service of a site in a loop, in another thread."""
    loop, stopped = ServiceLoop(site.made, 0.0), Event()
    runs = Thread(target=loop.run, args=(lambda _: None, stopped))
    runs.start()
    try:
        loop.ask(ClusterService.jobs)  # returns after the first look
        yield loop
    finally:
        stopped.set()
        runs.join()


def test_a_service_that_ends_takes_no_job(site: Site, make_job: Makes) -> None:
    loop, stopped = ServiceLoop(site.made, 0.0), Event()
    directory = str(make_job(5, STEP))

    def submit() -> None:
        loop.ask(lambda it: it.submit("a", "", directory, Spec(1)))

    with ThreadPoolExecutor(1) as people:

        def tell(_: ClusterService) -> None:
            asked.append(people.submit(submit))
            stopped.set()

        asked: list[Future[None]] = []
        loop.run(tell, stopped)
        with pytest.raises(ConnectionLost, match="has just ended"):
            asked[0].result(SECONDS)
    assert site.journal.job("a") is None


@pytest.mark.parametrize("verb", ["nodes", "start", "kill", "poll", "adopt"])
def test_an_engine_that_fails_in_any_way_has_not_answered(site: Site, verb: str) -> None:
    def fails(*_: object) -> None:
        raise ValueError("it has more columns")

    site.begin("a", LONG, STEP, gpus=2)
    site.restart(sweep=0.0)
    setattr(site.engine, verb, fails)
    site.submit("b", 5, STEP)
    site.service.cancel("a")
    site.steps(5)
    delattr(site.engine, verb)
    site.until_state(a="cancelled", b="done")
    assert site.is_whole("b", 5)


def test_a_job_that_is_lost_on_a_silent_node_starts_on_another_one(site: Site) -> None:
    """Slurm calls such a node dead a moment after it has given up its jobs."""
    site.submit("a", LONG, STEP)
    site.until(lambda: site.state("a") == "running")
    (silent,) = site.job("a").place
    site.engine.said = {silent: Node(2, used=2, is_silent=True)}
    site.steps()
    assert site.events("a")[-1] == "computes"  # it runs on
    site.engine.statuses = {"a": Status("unreachable")}
    site.service.step()
    site.engine.statuses = {}
    assert site.job("a").generation == 2
    assert silent not in site.job("a").place


def test_gpus_that_the_engine_has_chosen_itself_are_counted(site: Site) -> None:
    """GPUs that a gang has instead of the planned ones do not count as used by others, so it is not
    asked to yield."""
    site.submit("a", LONG, STEP, gpus=3)
    site.until(lambda: site.state("a") == "starting")
    other = {name: 3 - gpus for name, gpus in site.job("a").place.items()}
    site.engine.said = {name: Node(2, used=gpus) for name, gpus in other.items()}
    for told in (other, {"n0": 9}, {"x": 3}, {"n0": -1, "n1": 4}, other):  # the rest is nonsense
        site.engine.statuses = {"a": Status("running", told)}
        site.until(lambda: site.job("a").place == other)
    assert site.events("a").count("moved") == 1
    site.finish(a=LONG)
    assert "ask" not in site.events("a")


# --- files ----------------------------------------------------------------------------------------


def test_a_job_without_its_directory_has_failed(site: Site) -> None:
    site.begin("running", ENDLESS, STEP)
    site.submit("queued", ENDLESS, STEP)
    for id in ("running", "queued"):
        site.directory(id).rename(site.path / f"{id}-elsewhere")
    site.until_state(running="failed", queued="failed")
    for id in ("running", "queued"):
        assert str(site.directory(id)) in site.job(id).sentence


@contextlib.contextmanager
def unreadable(site: Site, id: str) -> Iterator[None]:
    """Make a job's directory unreadable within the block, while its processes stand still. Even
    root cannot read a link to itself."""
    processes = [p for rank in site.ranks(id) for p in (rank.parent(), rank) if p]
    for process in processes:
        process.suspend()
    there, elsewhere = site.directory(id), site.path / "elsewhere"
    there.rename(elsewhere)
    there.symlink_to(there)
    yield
    there.unlink()
    elsewhere.rename(there)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.system
def test_a_job_goes_on_whose_directory_cannot_be_read_for_a_while(site: Site) -> None:
    site.submit("a", LONG, STEP)
    site.until(lambda: (view := seen(site, "a")).state == "running" and view.iteration)
    with unreadable(site, "a"):
        site.steps(5)
        assert seen(site, "a").sentence.startswith("runs on n0, iteration ")
        assert seen(site, "a").sentence.endswith(
            ", but its directory cannot be read: Too many levels of symbolic links"
        )
        assert site.events("a").count("note") == 1
    site.service.step()
    assert "but" not in seen(site, "a").sentence
    site.finish(a=LONG)
    assert site.job("a").generation == 1


def test_a_job_is_cancelled_whose_directory_cannot_be_read(site: Site) -> None:
    site.begin("a", ENDLESS, STEP)
    with unreadable(site, "a"):
        site.service.cancel("a")
        site.until_state(a="cancelled")
        assert not site.ranks("a")
    site.service.step()
    assert site.job("a").generation == 1


def test_no_other_generation_is_started_while_one_cannot_be_closed(site: Site) -> None:
    job = site.submit("a", ENDLESS, STEP)
    site.until(lambda: generation.newest(job / "g1") != "")
    (job / "g1.closed").mkdir()
    (job / "g1.closed" / "in the way").touch()
    for rank in site.ranks("a"):
        rank.kill()
    site.until(lambda: "cannot be closed" in seen(site, "a").sentence)
    site.steps(20)
    assert site.job("a").generation == 1
    assert site.events("a").count("note") == 1
    shutil.rmtree(job / "g1.closed")
    site.until(lambda: site.job("a").generation == 2)


@pytest.mark.system
def test_a_service_that_could_not_write_has_started_nothing_and_is_made_anew(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    job, stopped = site.submit("a", 10, STEP), Event()
    other = sqlite3.connect(site.path / "cluster.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    made: list[ClusterService] = []

    def make() -> ClusterService:
        if len(made) == 2:  # two could not write
            assert not generations(job)
            other.execute("ROLLBACK")
        made.append(site.made())
        return made[-1]

    def tell(service: ClusterService) -> None:
        assert service is made[-1]
        if site.state("a") == "done":
            stopped.set()

    with contextlib.closing(other):
        ServiceLoop(make, 0.01).run(tell, stopped)
    assert len(made) == 3
    assert site.is_whole("a", 10)
    said = capsys.readouterr().err.splitlines()
    assert said == ["nothing is started, since a step failed: database is locked"] * 2
