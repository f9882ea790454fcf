"""The service over the engine of this machine, with real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster import generation
from jupyter_gpushare.cluster.engines.engine import Node, Start, Status
from jupyter_gpushare.cluster.jobs import NO_ROOM, OVERDUE, RANK_LOST, Spec
from jupyter_gpushare.cluster.views import cluster_view
from jupyter_gpushare.errors import DoesNotFit, InvalidValue, UnknownJob
from jupyter_gpushare.wire.jobs import JobView, LookAtUse

from ..polling import until
from .site import LONG, QUICK, STEP, Site, Troubled
from .test_launcher import BEGETS, SLEEPS, lives, pids
from .work import Makes, checkpoint, generations, iterations, opened

# It hears nothing, saves nothing, and writes into the directory of its generation.
DEAF = (
    "import os, time; here = os.environ['GPUSHARE_JOB'] + '/g' + os.environ['GPUSHARE_GENERATION'];"
    "time.sleep(1000)"
)
UNTIL_ENOUGH = "import os, time\nwhile not os.path.exists('enough'): time.sleep(0.02)"
ENDLESS = 100_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_job_runs_to_its_end(site: Site) -> None:
    job = site.submit("a", 20, STEP, gpus=3)
    site.until_state(a="done")
    assert site.is_whole("a", 20)
    assert site.events("a") == ["submitted", "start", "started", "computes", "done"]
    found = site.job("a")
    assert (found.generation, found.losses, found.yields, found.sentence) == (1, 0, 0, "")
    assert found.submitted < found.first < found.ended
    assert found.core["run"] == pytest.approx(20 * STEP)
    assert [path.name for path in generations(job)] == ["g1.closed"]


def test_what_was_counted_and_saved_without_an_arrow_is_counted_once(site: Site) -> None:
    site.submit("a", 40, STEP)
    for count in (10, 20, 30):
        site.until(lambda count=count: len(site.computed("a")) > count)
        site.service.step()
        site.service.uses(LookAtUse(0.0, 2e10, "job"), None)  # what was counted is written
        site.restart()
    site.until_state(a="done")
    assert site.job("a").core["run"] == pytest.approx(40 * STEP)


@pytest.mark.system
def test_what_a_job_has_computed_is_known_after_it_has_starved(site: Site) -> None:
    site.rules = GangRules(told=True, tick=0, thresholds=[0.1], knob=0.1)
    site.restart()
    site.submit("a", LONG, STEP, gpus=4)
    site.until(lambda: site.attained("a") > 0.2)
    site.submit("b", LONG, STEP, gpus=4)
    site.until(lambda: site.job("a").core["promoted"] > 0)
    site.hurry("a", "b")
    site.until_state(a="done", b="done")
    assert site.service.run_seconds(site.job("a")) == pytest.approx(LONG * STEP)


@pytest.mark.system
def test_jobs_of_parts_share_a_gpu_of_a_node_that_has_shards(tmp_path: Path) -> None:
    site = Site(tmp_path, "n0=2 n1=1/4")
    try:
        for id, gpus in (("a", 0.25), ("b", 0.5), ("c", 0.5)):
            site.submit(id, ENDLESS, STEP, gpus=gpus)
        site.submit("whole", 20, STEP, gpus=2)
        site.until(lambda: all(map(site.computes, ("a", "b", "whole"))))
        assert [site.job(id).place for id in "abc"] == [{"n1": 0.25}, {"n1": 0.5}, {}]
        assert ranks_of(site, "b", 1)[0].environ()["CUDA_VISIBLE_DEVICES"] == "2"
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
    finally:
        site.close()


@pytest.mark.system
def test_the_part_that_has_computed_least_goes_first(tmp_path: Path) -> None:
    site = Site(tmp_path, "n0=1/2")
    try:
        site.rules = GangRules(told=True, tick=0, thresholds=[0.2])  # GPU-seconds
        site.restart()
        site.submit("a", LONG, STEP, gpus=0.5)
        site.submit("b", LONG, STEP, gpus=0.5)
        site.until(lambda: min(site.attained("a"), site.attained("b")) > 0.25)
        site.submit("c", 5, STEP, gpus=0.25)  # it takes a shard, which is half of the GPU
        site.until_state(c="done")
        site.hurry("a", "b")
        site.until_state(a="done", b="done")
        assert sum(site.job(id).yields for id in "ab") == 1
        assert all(site.is_whole(id, count) for id, count in (("a", LONG), ("c", 5)))
    finally:
        site.close()


def test_a_part_is_refused_where_no_node_has_shards(site: Site) -> None:
    with pytest.raises(DoesNotFit, match=r"0\.25 of a GPU never fits: no node has a GPU in shards"):
        site.submit("a", 1, STEP, gpus=0.25)


@pytest.mark.system
def test_jobs_start_as_gpus_are_free(site: Site) -> None:
    for id in "abc":
        site.submit(id, 10, STEP, gpus=3)
    site.until_state(a="done", b="done", c="done")
    assert all(site.is_whole(id, 10) for id in "abc")
    starts = [site.all_events(id)[1].at for id in ("a", "b", "c")]
    assert starts == sorted(starts)
    ends = [site.job(id).ended for id in ("a", "b", "c")]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


@pytest.mark.system
def test_a_job_that_has_computed_yields_to_one_that_has_not(site: Site) -> None:
    site.check_that_one_yields()


@pytest.mark.system
def test_gpus_are_kept_for_the_first_that_waits_and_others_are_told(site: Site) -> None:
    """`wide` lacks one of four, which `short` has, and `stopped` would keep three for its least."""
    site.rules = GangRules(told=True, tick=0, thresholds=[0.2], least=1000.0)
    site.restart()
    site.submit("short", 2000, STEP, resumes=False)
    site.submit("stopped", 2000, STEP, gpus=3)
    site.until(lambda: site.computes("stopped") and site.attained("stopped") > 0.2)
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
    site.until_state(wide="done")
    assert site.is_whole("wide", 10)


def seen(site: Site, id: str) -> JobView:
    (view,) = cluster_view(site.service, "", id, False, "", 0.0).jobs
    return view


def test_a_job_that_does_not_resume_is_never_asked_to_yield(site: Site) -> None:
    site.submit("stays", LONG, STEP, gpus=4, resumes=False)
    site.until(lambda: site.attained("stays") > 1)
    site.submit("short", 5, STEP, gpus=2)
    for _ in range(10):
        site.service.step()
    site.hurry("stays")
    site.until_state(stays="done")
    assert "ask" not in site.events("stays")
    site.until_state(short="done")


def test_a_job_that_does_not_resume_ends_on_a_node_that_is_to_be_emptied(site: Site) -> None:
    site.submit("stays", 30, STEP, gpus=4, resumes=False)
    site.until(lambda: site.computes("stays"))
    site.engine.said = {"n0": Node(0)}
    site.until_state(stays="done")
    assert "ask" not in site.events("stays")
    assert site.is_whole("stays", 30)


def test_a_job_that_tells_nothing_is_counted_by_its_beats(site: Site) -> None:
    job = site.submit("silent", sys.executable, "-c", UNTIL_ENOUGH, tells=False)
    site.until(lambda: site.service.run_seconds(site.job("silent")) > 0.2)
    (job / "work" / "enough").touch()
    site.until_state(silent="done")
    assert site.job("silent").core["run"] > 0.2


# --- what people ask for --------------------------------------------------------------------------


def test_the_same_job_is_submitted_once(site: Site) -> None:
    site.submit("a", 5, STEP)
    site.submit("a", 5, STEP)
    assert site.events("a") == ["submitted"]
    site.until_state(a="done")
    site.submit("a", 5, STEP)
    assert site.state("a") == "done"
    with pytest.raises(InvalidValue, match="another job of the id a"):
        site.service.submit("a", "other", str(site.directory("a")), Spec(1))


@pytest.mark.parametrize("id", ["", "A", "a/b", "a.b", "x" * 65])
def test_an_id_that_an_engine_could_not_name_is_refused(site: Site, id: str) -> None:
    with pytest.raises(InvalidValue, match="a-z, 0-9"):
        site.service.submit(id, "", "/tmp", Spec(1))


def test_a_job_that_the_nodes_could_never_hold_is_refused(site: Site) -> None:
    site.service.step()
    for gpus, nodes in ((5, 0), (3, 1)):
        with pytest.raises(DoesNotFit, match=r"a job of .* never fits: the nodes have at most"):
            site.submit("a", 5, STEP, gpus=gpus, nodes=nodes)
    assert site.journal.job("a") is None
    site.submit("a", 5, STEP, gpus=4)


def test_a_job_may_want_what_others_use(site: Site) -> None:
    site.engine.said = {"n2": Node(4, used=3)}
    site.service.step()
    site.submit("a", 5, STEP, gpus=8)
    site.service.step()
    assert site.state("a") == "queued"


def test_what_others_use_is_waited_for(site: Site) -> None:
    site.engine.said = {"n0": Node(2, used=1)}
    site.service.step()
    site.submit("a", 5, STEP, gpus=4)
    for _ in range(3):
        site.service.step()
    assert site.state("a") == "queued"
    site.engine.said = {}
    site.until_state(a="done")
    assert site.job("a").generation == 1


def test_a_job_that_waits_is_cancelled_at_once(site: Site) -> None:
    site.submit("a", 5, STEP)
    assert site.service.cancel("a").state == "cancelled"
    site.service.step()
    assert (site.state("a"), site.job("a").generation) == ("cancelled", 0)
    assert site.service.cancel("a").state == "cancelled"  # once more: nothing
    assert site.events("a") == ["submitted", "cancelled"]


def test_a_job_that_runs_is_cancelled_with_its_processes(site: Site) -> None:
    job = site.submit("a", sys.executable, "-c", BEGETS, gpus=2)
    site.until(lambda: site.job("a").handle != "")
    there = pids(job)
    site.service.cancel("a")
    site.until_state(a="cancelled")
    until(lambda: not any(map(lives, there)))
    assert site.events("a")[-3:] == ["cancel", "end", "cancelled"]


def test_a_job_that_yields_is_cancelled(site: Site) -> None:
    job = site.submit("a", sys.executable, "-c", DEAF, gpus=4)
    site.until(lambda: site.job("a").handle != "")
    site.submit("b", 5, STEP)
    site.engine.said = {"n0": Node(0)}  # to be emptied
    site.until_state(a="yielding")
    site.service.cancel("a")
    site.until_state(a="cancelled")
    site.engine.said = {}
    site.until_state(b="done")
    assert len(generations(job)) == 1


def test_a_job_that_is_not_there_cannot_be_cancelled(site: Site) -> None:
    with pytest.raises(UnknownJob, match="no job x"):
        site.service.cancel("x")


# --- how generations end --------------------------------------------------------------------------


def test_a_rank_that_fails_ends_the_job_with_its_last_lines(site: Site) -> None:
    site.submit("a", sys.executable, "-c", "raise SystemExit('it is too late')", gpus=4)
    site.until_state(a="failed")
    assert site.job("a").sentence == "it exited with status 1: it is too late"
    assert site.job("a").generation == 1


def test_a_gang_that_has_lost_a_rank_is_ended_whole_and_goes_on(site: Site) -> None:
    job = site.submit("a", LONG, STEP, gpus=4)
    site.until(lambda: generation.newest(job / "g1") != "")
    (victim,) = [rank for rank in ranks_of(site, "a", 1) if rank.environ()["RANK"] == "1"]
    victim.kill()
    site.hurry("a")
    site.until_state(a="done")
    assert (site.job("a").generation, site.events("a").count("lost")) == (2, 1)
    assert {*site.computed("a")} == {*range(1, LONG + 1)}
    assert resumed_where_it_had_saved(site, "a")


def ranks_of(site: Site, id: str, number: int) -> list[psutil.Process]:
    """The first processes of a generation that its launchers have started."""
    name = f"gs.{site.journal.cluster()}.{id}.g{number}"
    found = []
    for process in psutil.process_iter():
        try:
            there = process.environ()
            if there.get("GPUSHARE_LEASE") == name and "GPUSHARE_JOB" in there:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def resumed_where_it_had_saved(site: Site, id: str) -> bool:
    """Each generation began after the checkpoint of the one before it."""
    job = site.directory(id)
    before, *others = generations(job)
    saved = 0
    for each in others:
        resume = generation.newest(before)
        saved = checkpoint(job, resume) if resume else saved
        began = iterations([each])
        if began and began[0] != saved + 1:
            return False
        before = each
    return True


def test_a_job_that_does_not_leave_in_its_lease_is_killed(site: Site) -> None:
    site.bounds = site.bounds._replace(lease=0.2)
    site.restart()
    site.submit("a", sys.executable, "-c", SLEEPS, gpus=4)
    site.until(lambda: site.job("a").handle != "")
    site.engine.said = {"n0": Node(0)}
    site.until(lambda: "lost" in site.events("a"))
    assert site.events("a")[-3:] == ["ask", "end", "lost"]
    assert site.reasons("a") == [OVERDUE]
    assert not ranks_of(site, "a", 1)


def test_a_job_that_is_lost_for_the_third_time_without_a_checkpoint_has_failed(site: Site) -> None:
    kills_itself = "import os; os.kill(os.getpid(), 9)"
    site.submit("a", sys.executable, "-c", kills_itself)
    site.until_state(a="failed")
    assert site.job("a").generation == 3
    assert "as 2 before it, without a newer checkpoint" in site.job("a").sentence


def test_a_job_on_a_node_that_is_lost_goes_on_with_others(site: Site) -> None:
    job = site.submit("a", LONG, STEP, gpus=2, nodes=1)
    site.until(lambda: generation.newest(job / "g1") != "")
    (node,) = site.job("a").place
    site.engine.said = {node: Node(2, alive=False)}
    site.until(lambda: site.job("a").generation == 2)
    site.hurry("a")
    site.until_state(a="done")
    assert (site.job("a").generation, site.job("a").losses) == (2, 0)
    assert {*site.computed("a")} == {*range(1, LONG + 1)}
    assert resumed_where_it_had_saved(site, "a")
    word = generation.read(job / "g2.closed" / "word.json") or {}
    assert word["where"].keys() == {"n0", "n1"} - {node}


def test_a_node_that_is_to_be_emptied_is_left_at_a_boundary(site: Site) -> None:
    site.submit("a", LONG, STEP, gpus=2, nodes=1)
    site.until(lambda: site.computes("a"))
    (node,) = site.job("a").place
    site.engine.said = {node: Node(0)}
    site.until(lambda: site.job("a").yields == 1)
    site.hurry("a")
    site.until_state(a="done")
    assert (site.job("a").yields, site.job("a").losses) == (1, 0)
    assert site.is_whole("a", LONG)


def stopped(site: Site) -> list[int]:
    """All processes of the first generation of a, which compute nothing from now on."""
    found = [process.pid for process in psutil.process_iter() if is_of(process, site, 1)]
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return found


def is_of(process: psutil.Process, site: Site, number: int) -> bool:
    try:
        return (
            process.environ()
            .get("GPUSHARE_LEASE", "")
            .endswith(f"{site.journal.cluster()}.a.g{number}")
        )
    except (psutil.Error, OSError):
        return False


def test_what_is_given_up_is_killed_once_its_node_answers(site: Site) -> None:
    site.bounds = site.bounds._replace(sweep=0.1, kill=0.1)
    site.restart()
    job = site.submit("a", sys.executable, "-c", BEGETS, gpus=2)
    site.until(lambda: site.job("a").handle != "")
    pids(job)
    there = stopped(site)  # so they do not notice that it is closed
    site.engine.cannot_kill = True
    site.service.cancel("a")
    site.until_state(a="cancelled")  # after the time that killing may take
    site.engine.cannot_kill = False
    site.until(lambda: not any(map(lives, there)))


# --- an engine that refuses, forgets, or does not answer ------------------------------------------


def test_a_job_that_finds_no_room_waits_and_costs_a_number(site: Site, make_job: Makes) -> None:
    """Another program has taken the GPUs after the engine was asked for its nodes."""
    neighbor = Troubled(f"{site.journal.cluster()}-2", "n0=2 n1=2")
    other = make_job(sys.executable, "-c", BEGETS, name="other")
    opened(other, n0=2)
    taken = neighbor.start(Start(f"{site.journal.cluster()}-2", "other", 1, other, {"n0": 2}))
    pids(other)
    site.engine.said = {"n0": Node(2), "n1": Node(2)}
    site.submit("a", 5, STEP, gpus=3)
    site.until(lambda: site.events("a").count("no room") == 2)
    neighbor.kill(taken)
    site.until_state(a="done")
    assert site.is_whole("a", 5)
    assert site.job("a").losses == 0
    assert site.job("a").generation >= 3
    starts = [event.at for event in site.all_events("a") if event.what == "start"]
    assert starts[2] - starts[1] >= 2 * site.bounds.postponed


def test_an_engine_that_does_not_answer_changes_nothing(site: Site) -> None:
    site.submit("a", LONG, STEP, gpus=4)
    site.until(lambda: site.computes("a"))
    site.engine.is_away = True
    for _ in range(5):
        site.service.step()
    assert site.state("a") in ("starting", "running")
    site.restart()
    site.hurry("a")
    site.until(lambda: site.state("a") == "done")  # its launchers have said how they ended
    assert site.is_whole("a", LONG)
    site.submit("b", 5, STEP)
    site.service.step()
    assert site.state("b") == "queued"
    site.engine.is_away = False
    site.until_state(b="done")


def test_people_can_submit_and_cancel_while_the_engine_hangs(site: Site) -> None:
    site.answer_seconds = 0.1
    site.restart()
    site.submit("a", 20, STEP)
    site.until(lambda: site.computes("a"))
    site.engine.answers.clear()
    for _ in range(3):
        site.service.step()
    site.submit("b", 5, STEP)
    site.submit("c", 5, STEP)
    site.service.cancel("c")
    assert (site.state("b"), site.state("c")) == ("queued", "cancelled")
    site.engine.answers.set()
    site.until_state(a="done", b="done")
    assert site.is_whole("a", 20)


def test_a_start_that_lasts_too_long_is_found(site: Site) -> None:
    site.answer_seconds = 0.1
    site.restart()
    site.engine.starts_after = 0.3
    site.submit("a", 20, STEP, gpus=4)
    site.until_state(a="done")
    assert "adopted" in site.events("a")
    assert site.job("a").generation == 1
    assert site.is_whole("a", 20)


def test_a_start_whose_answer_is_lost_is_found(site: Site) -> None:
    site.submit("a", 20, STEP, gpus=4)
    site.engine.forgets = True
    site.until(lambda: "start" in site.events("a"))
    site.engine.forgets = False
    site.until_state(a="done")
    assert "adopted" in site.events("a")
    assert site.job("a").generation == 1
    assert site.is_whole("a", 20)


def test_a_start_that_came_to_nothing_costs_a_number(site: Site) -> None:
    site.submit("a", 5, STEP)
    site.engine.refuses = True
    site.until(lambda: "start" in site.events("a"))
    site.engine.refuses = False
    site.until_state(a="done")
    assert site.events("a")[1:4] == ["start", "not started", "start"]
    assert (site.job("a").generation, site.job("a").losses) == (2, 0)
    assert site.is_whole("a", 5)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_start_that_was_cut_short_is_given_up_without_a_loss(site: Site, resumes: bool) -> None:
    """The service was killed before it had started all launchers: none of the ranks has started."""
    site.bounds = site.bounds._replace(pending=0.3)
    site.restart()
    site.submit("a", 5, STEP, gpus=4, resumes=resumes)
    site.engine.is_cut_short = True
    site.until(lambda: "adopted" in site.events("a"))
    site.engine.is_cut_short = False
    site.until(lambda: "not started" in site.events("a"))
    site.bounds = QUICK  # the next one may take its time to start
    site.restart()
    site.until_state(a="done")
    assert site.events("a")[2:5] == ["adopted", "end", "not started"]
    assert (site.job("a").generation, site.job("a").losses) == (2, 0)
    assert site.is_whole("a", 5)


def test_a_gang_of_which_one_launcher_is_gone_is_ended_whole(site: Site) -> None:
    """The engine sees that others of it run."""
    site.bounds = site.bounds._replace(silent=3.0)
    site.restart()
    site.submit("a", ENDLESS, STEP, gpus=4)
    site.until(lambda: generation.newest(site.directory("a") / "g1") != "")
    (rank,) = [rank for rank in ranks_of(site, "a", 1) if rank.environ()["RANK"] == "1"]
    rank.parent().kill()
    site.until(lambda: site.job("a").generation == 2)
    assert site.reasons("a") == [RANK_LOST]
    assert resumed_where_it_had_saved(site, "a")


def test_a_request_that_stays_pending_is_withdrawn(site: Site) -> None:
    site.bounds = site.bounds._replace(pending=0.1)
    site.engine.is_full = True
    site.restart()
    site.submit("a", sys.executable, "-c", SLEEPS)
    site.until(lambda: "no room" in site.events("a"))
    assert {*site.reasons("a")} == {NO_ROOM}
    assert site.state("a") in ("queued", "starting")
    assert not site.job("a").losses


def test_gpus_that_the_engine_has_chosen_itself_are_counted(site: Site) -> None:
    site.engine.statuses = {"a": Status("running", {"n0": 1, "n1": 2})}
    site.submit("a", sys.executable, "-c", SLEEPS, gpus=3)
    site.until(lambda: "moved" in site.events("a"))
    assert site.job("a").place == {"n0": 1, "n1": 2}
    for nonsense in ({"n0": 9}, {"x": 3}, {"n0": -1, "n1": 4}):
        site.engine.statuses = {"a": Status("running", nonsense)}
        site.service.step()
    assert site.events("a").count("moved") == 1


def test_a_gang_that_the_engine_has_divided_itself_is_not_asked_to_leave(site: Site) -> None:
    """What it uses beside its plan is not that of others."""
    site.submit("a", LONG, STEP, gpus=3)
    site.until(lambda: site.state("a") == "starting")
    there = site.job("a").place
    other = {name: 3 - gpus for name, gpus in there.items()}
    site.engine.said = {name: Node(2, used=gpus) for name, gpus in other.items()}
    site.engine.statuses = {"a": Status("running", other)}
    site.until(lambda: site.job("a").place == other)
    site.hurry("a")
    site.until_state(a="done")
    assert "ask" not in site.events("a")
    assert site.is_whole("a", LONG)


# --- files ----------------------------------------------------------------------------------------


def test_a_job_without_its_directory_has_failed(site: Site) -> None:
    for id, wait in (("running", True), ("queued", False)):
        site.submit(id, ENDLESS, STEP)
        if wait:
            site.until(lambda: site.computes("running"))
        site.directory(id).rename(site.path / f"{id}-elsewhere")
    site.until_state(running="failed", queued="failed")
    for id in ("running", "queued"):
        assert str(site.directory(id)) in site.job(id).sentence


@contextlib.contextmanager
def unreadable(site: Site, id: str) -> Iterator[None]:
    """The directory of a job, whose processes stand still meanwhile. To root all is readable but
    names that lead to themselves."""
    processes = [p for rank in ranks_of(site, id, 1) for p in (rank.parent(), rank) if p]
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


def test_a_job_goes_on_whose_directory_cannot_be_read_for_a_while(site: Site) -> None:
    site.submit("a", LONG, STEP)
    site.until(lambda: (view := seen(site, "a")).state == "running" and view.iteration)
    with unreadable(site, "a"):
        for _ in range(5):
            site.service.step()
        assert seen(site, "a").sentence.startswith("runs on n0, iteration ")
        assert seen(site, "a").sentence.endswith(
            ", but its directory cannot be read: Too many levels of symbolic links"
        )
        assert site.events("a").count("note") == 1
    site.service.step()
    assert "but" not in seen(site, "a").sentence
    site.hurry("a")
    site.until_state(a="done")
    assert site.job("a").generation == 1
    assert site.is_whole("a", LONG)


def test_a_job_is_cancelled_whose_directory_cannot_be_read(site: Site) -> None:
    site.submit("a", ENDLESS, STEP)
    site.until(lambda: site.computes("a"))
    with unreadable(site, "a"):
        site.service.cancel("a")
        site.until_state(a="cancelled")
        assert not ranks_of(site, "a", 1)
    site.service.step()
    assert site.job("a").generation == 1


def test_no_other_generation_is_started_while_one_cannot_be_closed(site: Site) -> None:
    job = site.submit("a", ENDLESS, STEP)
    site.until(lambda: generation.newest(job / "g1") != "")
    (job / "g1.closed").mkdir()
    (job / "g1.closed" / "in the way").touch()
    for rank in ranks_of(site, "a", 1):
        rank.kill()
    for _ in range(20):
        site.service.step()
    assert site.job("a").generation == 1
    assert "cannot be closed" in seen(site, "a").sentence
    assert site.events("a").count("note") == 1
    shutil.rmtree(job / "g1.closed")
    site.until(lambda: site.job("a").generation == 2)


def test_nothing_is_started_that_the_journal_does_not_have(site: Site) -> None:
    site.submit("a", 5, STEP)
    other = sqlite3.connect(site.path / "cluster.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        site.service.step()
    other.execute("ROLLBACK")
    other.close()
    assert not generations(site.directory("a"))
    site.service = site.made()
    site.until_state(a="done")
    assert site.job("a").generation == 1
