"""The launcher, the program on each node of a gang, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.launch.contents import Contents, tail
from jupyter_gpushare.cluster.launch.generation import FENCED

from ....polling import comes, until
from ..work import LAUNCHER, Launches, Makes, iterations, opened

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
FAILS_IF_TERMINATED = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3));"
# It tells the ids of its processes, and once a program of it has ended, whether the others live.
BEARS = """
import multiprocessing, os, subprocess, time
from torch.utils.data import DataLoader
from jupyter_gpushare.client.checkpoints.termination import bear_if_told
bear_if_told()
class Waits:
    def __len__(self): return 1
    def __getitem__(self, _):
        open("part", "a").write(str(os.getpid())), os.rename("part", "pids"), time.sleep(1000)
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[1000])
child.start()
program = subprocess.Popen(["sleep", "1000"])
open("part", "w").write(f"{program.pid} {os.getpid()} {child.pid} ")
batches = iter(DataLoader(Waits(), num_workers=1))
(worker,) = batches._workers
print(program.wait(), child.is_alive(), worker.is_alive())
for each in (child, worker):
    while each.is_alive():  # one that still has the signal of others to handle gets no second one
        each.terminate(), each.join(0.1)
print(child.exitcode, worker.exitcode, flush=True)
os.kill(os.getpid(), 15)
"""

# It runs a program, and tells when that opens its job's directory, and when it touches a file.
NOTES = """
import os, runpy, sys
def note(event, given):
    if event == "os.utime" or (event == "open" and str(given[0]) == sys.argv[1]):
        os.write(1, f"{event} ".encode())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
sys.addaudithook(note)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
    [("gpu", ["0 0 2 0 2", "1 1 2 0 2", "2 0 1 1 2"]), ("node", ["0 0 1 0 2", "1 0 1 1 2"])],
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
    assert Contents(directory).endings() == {"n0": 0, "n1": 0}


Starts = Callable[..., "tuple[Path, subprocess.Popen[bytes]]"]


@pytest.fixture
def start(make_job: Makes, launch: Launches) -> Starts:
    """Start the launcher of a job on one node with this number of GPUs."""

    def start(*command: object, gpus: int = 1, ranks: str = "node", saves: bool = False) -> Any:
        job = make_job(*command, ranks=ranks)
        opened(job, saves=saves, n0=gpus)
        return job, launch(job)

    return start


@pytest.mark.parametrize("ranks", ["gpu", "node"])
def test_a_process_that_is_alone_is_a_rank_only_if_it_is_to_be_one(
    ranks: str, start: Starts
) -> None:
    gpus = 1 if ranks == "gpu" else 4
    job, launcher = start(sys.executable, "-c", PRINTS, gpus=gpus, ranks=ranks)
    assert launcher.wait() == 0
    (found,) = environments(job)
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}
    assert found.keys() & names == (names if ranks == "gpu" else set())


@pytest.mark.system
@pytest.mark.parametrize("first", ["n0", "n1"])
def test_no_rank_of_a_gang_starts_before_all_its_launchers_have_begun(
    first: str, make_job: Makes, launch: Launches
) -> None:
    job = make_job(3, 0)
    directory = opened(job, n0=1, n1=1)
    launchers = [launch(job, node=first)]
    until(lambda: Contents(directory).beats() == {first})
    assert not comes(lambda: Contents(directory).has_ranks(), seconds=0.3)
    assert iterations([directory]) == []
    launchers.append(launch(job, node="n1" if first == "n0" else "n0"))
    assert [launcher.wait() for launcher in launchers] == [0, 0]
    assert Contents(directory).has_ranks()
    assert iterations([directory]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("number", "saves"), [(signal.SIGUSR2, False), (signal.SIGUSR2, True), (signal.SIGTERM, True)]
)
def test_a_signal_for_each_process_of_a_gang_ends_no_rank_that_saves(
    number: signal.Signals, saves: bool, start: Starts
) -> None:
    job, _ = start(sys.executable, "-c", BEGETS, saves=saves)
    for pid in pids(job):
        os.kill(pid, number)
    assert not comes(lambda: not all(map(lives, pids(job))), seconds=0.3)


@pytest.mark.parametrize("begin", ["", FAILS_IF_TERMINATED])
def test_a_rank_that_fails_as_a_batch_system_ends_it_has_not_failed_by_itself(
    begin: str, start: Starts
) -> None:
    """The rank does not save. A rank that saves may fail because the signal ended a program that it
    needs."""
    job, launcher = start(sys.executable, "-c", begin + BEGETS)
    rank, _ = pids(job)
    launcher.terminate()
    until(lambda: Contents(job / "g1").heard() == {"n0"})
    os.kill(rank, signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    assert Contents(job / "g1").endings() == {"n0": -signal.SIGTERM}


@pytest.mark.system
def test_a_rank_bears_sigterm_of_others_and_what_it_starts_ends_by_it(start: Starts) -> None:
    job, launcher = start(sys.executable, "-c", BEARS, saves=True)
    for pid in reversed(pids(job)):
        os.kill(pid, signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    assert (job / "g1" / "log.n0").read_text() == "-15 True True\n-15 0\n"


def test_the_id_of_a_rank_that_is_done_is_no_others_until_its_group_is_killed(
    start: Starts,
) -> None:
    begets = f"import os, sys\nif os.environ['RANK'] == '0': sys.exit(0)\n{BEGETS}"
    job, launcher = start(sys.executable, "-c", begets, gpus=2, ranks="gpu")
    pids(job)
    (done,) = [p for p in psutil.Process(launcher.pid).children() if p.pid != pids(job)[0]]
    until(lambda: not lives(done.pid))
    assert not comes(lambda: not psutil.pid_exists(done.pid), seconds=0.3)


def test_a_rank_that_fails_ends_the_others_before_it_is_said(start: Starts) -> None:
    fails = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{BEGETS}"
    job, launcher = start(sys.executable, "-c", fails, gpus=2, ranks="gpu")
    assert launcher.wait() == 3
    assert Contents(job / "g1").endings() == {"n0": 3}
    if (job / "work" / "pids").exists():
        assert not any(map(lives, pids(job)))


@pytest.mark.parametrize(
    ("command", "status", "code", "said"),
    [
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"), 128 + 11, -11, ""),
        (("/no/such/program",), 127, 127, "cannot be started"),
    ],
)
def test_how_a_rank_has_ended_is_told(
    command: tuple[str, ...], status: int, code: int, said: str, start: Starts
) -> None:
    job, launcher = start(*command)
    assert launcher.wait() == status
    assert Contents(job / "g1").endings() == {"n0": code}
    assert said in tail(job / "g1" / "log.n0")


def test_ranks_and_what_they_start_end_when_the_generation_is_closed(start: Starts) -> None:
    job, launcher = start(sys.executable, "-c", BEGETS)
    ranks = pids(job)
    generation.close_generation(job, 1)
    assert launcher.wait() == FENCED
    until(lambda: not any(map(lives, ranks)))
    assert Contents(job / "g1.closed").endings() == {}
    assert not (job / "g1").exists()


def test_each_beat_opens_the_directory_of_the_job_anew(make_job: Makes) -> None:
    job = make_job(20, 0.02)
    opened(job)
    run = [sys.executable, "-c", NOTES, str(LAUNCHER), str(job), "1", "n0"]
    noted = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(noted) > 4
    assert noted == ["open", "os.utime"] * (len(noted) // 2)


def test_no_second_launcher_of_a_node_runs(start: Starts, launch: Launches) -> None:
    job, _ = start(sys.executable, "-c", BEGETS)
    pids(job)
    assert launch(job).wait() == FENCED
    assert Contents(job / "g1").endings() == {}
    assert all(map(lives, pids(job)))
