"""The program on each node of a gang, as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from jupyter_gpushare.cluster import generation
from jupyter_gpushare.cluster.generation import FENCED, YIELDED

from ..polling import comes, until
from .work import LAUNCHER, Launches, Makes, iterations, opened

PRINTS = (
    "import json, os; it = os.environ;"
    "open('env.' + it.get('RANK', '0'), 'w').write(json.dumps({**it}))"
)
SLEEPS = "import time; time.sleep(1000)"
# It starts a process of its own, and tells the ids of both.
BEGETS = (
    "import os, subprocess, sys; child = subprocess.Popen(['sleep', '1000']);"
    "open('pids.part', 'w').write(f'{os.getpid()} {child.pid}');"
    "os.rename('pids.part', 'pids'); child.wait()"
)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pids(job: Path) -> list[int]:
    until((job / "work" / "pids").exists)
    return [int(pid) for pid in (job / "work" / "pids").read_text().split()]


def environments(job: Path) -> list[dict[str, str]]:
    files = sorted((job / "work").glob("env.*"), key=lambda path: int(path.suffix[1:]))
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ("gpu", ["0 0 2 0 2", "1 1 2 0 2", "2 0 1 1 2"]),
        ("node", ["0 0 1 0 2", "1 0 1 1 2"]),
    ],
)
def test_ranks_have_the_environment_of_a_process_group(
    ranks: str, expected: list[str], make_job: Makes, launch: Launches
) -> None:
    job = make_job(sys.executable, "-c", PRINTS, ranks=ranks)
    directory = opened(job, n1=2, n0=1)
    launchers = [launch(job, node=node) for node in ("n0", "n1")]
    assert [launcher.wait() for launcher in launchers] == [0, 0]
    found = environments(job)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [" ".join(one[name] for name in names) for one in found] == expected
    assert {one["WORLD_SIZE"] for one in found} == {str(len(expected))}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}) == 1
    assert generation.endings(directory) == {"n0": 0, "n1": 0}


@pytest.mark.parametrize("ranks", ["gpu", "node"])
def test_a_process_that_is_alone_is_a_rank_only_if_it_is_to_be_one(
    ranks: str, make_job: Makes, launch: Launches
) -> None:
    job = make_job(sys.executable, "-c", PRINTS, ranks=ranks)
    opened(job, n0=1 if ranks == "gpu" else 4)
    assert launch(job).wait() == 0
    (found,) = environments(job)
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}
    assert found.keys() & names == (names if ranks == "gpu" else set())


def test_ranks_count_themselves_and_not_tasks_of_slurm(
    make_job: Makes, launch: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    job = make_job(sys.executable, "-c", PRINTS)
    opened(job)
    assert launch(job).wait() == 0
    (found,) = environments(job)
    assert found.keys() & told.keys() == {"SLURM_JOB_ID"}


def test_a_job_is_told_where_it_resumes(make_job: Makes, launch: Launches) -> None:
    job = make_job(sys.executable, "-c", PRINTS)
    opened(job, resume="g1.closed/it-5", number=2)
    assert launch(job, 2).wait() == 0
    (found,) = environments(job)
    assert found["GPUSHARE_RESUME"] == str(job / "g1.closed" / "it-5")
    assert (found["GPUSHARE_JOB"], found["GPUSHARE_GENERATION"]) == (str(job), "2")


@pytest.mark.parametrize("first", ["n0", "n1"])
def test_no_rank_of_a_gang_starts_before_all_its_launchers_have_begun(
    first: str, make_job: Makes, launch: Launches
) -> None:
    job = make_job(3, 0)
    directory = opened(job, n0=1, n1=1)
    launchers = [launch(job, node=first)]
    until(lambda: generation.beats(directory) == {first})
    assert not comes(lambda: generation.has_ranks(directory), seconds=0.3)
    assert iterations([directory]) == []
    launchers.append(launch(job, node="n1" if first == "n0" else "n0"))
    assert [launcher.wait() for launcher in launchers] == [0, 0]
    assert generation.has_ranks(directory)
    assert iterations([directory]) == [1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_asks_the_ranks_to_yield(
    number: signal.Signals, make_job: Makes, launch: Launches
) -> None:
    job = make_job(100_000, 0.01)
    directory = opened(job)
    launcher = launch(job)
    until((directory / "progress.json").exists)
    launcher.send_signal(number)
    assert launcher.wait() == YIELDED
    assert generation.endings(directory) == {"n0": YIELDED}
    saved = generation.read(job / generation.newest(directory)) or {}
    assert iterations([directory]) == list(range(1, saved["iteration"] + 1))


def test_a_signal_for_each_process_of_a_gang_ends_no_rank(
    make_job: Makes, launch: Launches
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    opened(job)
    launch(job)
    for pid in pids(job):
        os.kill(pid, signal.SIGUSR2)
    assert not comes(lambda: not all(map(lives, pids(job))), seconds=0.3)


def test_a_rank_that_fails_ends_the_others_before_it_is_said(
    make_job: Makes, launch: Launches
) -> None:
    fails = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{BEGETS}"
    job = make_job(sys.executable, "-c", fails, ranks="gpu")
    directory = opened(job, n0=2)
    assert launch(job).wait() == 3
    assert generation.endings(directory) == {"n0": 3}
    if (job / "work" / "pids").exists():
        assert not any(map(lives, pids(job)))


def test_a_rank_that_a_signal_has_ended_is_told_as_such(make_job: Makes, launch: Launches) -> None:
    job = make_job(sys.executable, "-c", "import os; os.kill(os.getpid(), 11)")
    directory = opened(job)
    assert launch(job).wait() == 128 + 11
    assert generation.endings(directory) == {"n0": -11}


def test_a_command_that_cannot_be_run_is_told_in_the_log(make_job: Makes, launch: Launches) -> None:
    job = make_job("/no/such/program")
    directory = opened(job)
    assert launch(job).wait() == 127
    assert generation.endings(directory) == {"n0": 127}
    assert "cannot be started" in generation.tail(directory / "log.n0")


def test_ranks_and_what_they_start_end_when_the_generation_is_closed(
    make_job: Makes, launch: Launches
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    opened(job)
    launcher = launch(job)
    ranks = pids(job)
    generation.close_generation(job, 1)
    assert launcher.wait() == FENCED
    until(lambda: not any(map(lives, ranks)))
    assert generation.endings(job / "g1.closed") == {}


def test_ranks_end_with_a_launcher_that_is_killed(make_job: Makes, launch: Launches) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    opened(job)
    launcher = launch(job)
    rank = pids(job)[0]
    launcher.kill()
    until(lambda: not lives(rank))
    os.kill(pids(job)[1], signal.SIGKILL)  # an engine does so: it knows whose process it is


def test_no_second_launcher_of_a_node_runs(make_job: Makes, launch: Launches) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    directory = opened(job)
    launch(job)
    pids(job)
    assert launch(job).wait() == FENCED
    assert generation.endings(directory) == {}
    assert all(map(lives, pids(job)))


def test_a_generation_that_was_frozen_writes_nothing_beside_its_successor(
    make_job: Makes, launch: Launches
) -> None:
    job = make_job(100_000, 0.01)
    opened(job)
    launcher = launch(job)
    until(lambda: bool(generation.newest(job / "g1")))
    frozen = [launcher.pid, *children(launcher.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    closed = generation.close_generation(job, 1)
    left = written(closed)
    opened(job, 2, resume=generation.newest(closed))
    launch(job, 2)
    until(lambda: bool(generation.newest(job / "g2")))
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):  # the launcher ends its ranks
            os.kill(pid, signal.SIGCONT)
    assert launcher.wait() == FENCED
    until(lambda: not any(map(lives, frozen)))
    assert written(closed) == left
    assert not (job / "g1").exists()


def written(closed: Path) -> dict[str, int]:
    """Times of all its files but of logs, which are open: there a rank says why it fails."""
    files = (path for path in closed.iterdir() if not path.name.startswith("log."))
    return {path.name: path.stat().st_mtime_ns for path in files}


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("arguments", [[], ["job"], ["job", "x", "n0"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    run = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(LAUNCHER), *arguments])
    assert run == 1
