"""The contract of an engine: the effects of its six verbs, with real processes.

A new kind of engine needs one row of ENGINES.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from jupyter_gpushare.cluster.engines import engine as seam
from jupyter_gpushare.cluster.engines.engine import Engine, Lease, Node, Start
from jupyter_gpushare.cluster.engines.local import LocalEngine, declared
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.launch.contents import Contents
from jupyter_gpushare.cluster.launch.generation import YIELDED
from jupyter_gpushare.errors import InvalidValue, NoRoom
from jupyter_gpushare.wire.jobs import Gpus

from ....polling import comes, until
from ..conftest import ADDRESS, ON_RAY
from ..launch.test_launcher import BEGETS, PRINTS, environments, lives, pids
from ..work import Makes, iterations, opened

NODES = "n0=2 n1=2 n2=1/4"
WHOLE = ("n0", "n1")


def local(cluster: str) -> Engine:
    return LocalEngine(cluster, declared(NODES))


def on_ray(cluster: str) -> Engine:
    from jupyter_gpushare.cluster.engines.ray import RayEngine

    return RayEngine(cluster, ADDRESS)


ENGINES: dict[str, Callable[[str], Engine]] = {"local": local, "slurm": SlurmEngine}
if ON_RAY in os.environ:  # in a network of its own: `test_ray.py`
    ENGINES = {"ray": on_ray}


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GPUSHARE_ADDRESS", "127.0.0.1")
    if request.param in ("slurm", "ray"):
        request.getfixturevalue(request.param)
    return str(request.param)


class Trial(NamedTuple):
    """An engine, and its jobs. The engine finds running jobs by the name of its cluster."""

    kind: str
    cluster: str
    engine: Engine
    make_job: Makes

    def another(self, cluster: str) -> Engine:
        return ENGINES[self.kind](cluster)

    def start(self, job: Path, number: int = 1, **where: Gpus) -> Lease:
        where = where or {"n0": 1}
        if not generation.path_of(job, number).exists():
            opened(job, number, **{node: math.ceil(gpus) for node, gpus in where.items()})
        return self.engine.start(Start(self.cluster, job.name, number, job, where))

    def whole_nodes(self) -> dict[str, Node]:
        nodes = self.engine.nodes()
        return {name: nodes[name] for name in WHOLE}

    def runs(self, lease: Lease) -> bool:
        return lease in self.engine.poll([lease])

    def ended(self, lease: Lease) -> None:
        until(lambda: not self.runs(lease))


@pytest.fixture
def trial(kind: str, make_job: Makes) -> Iterator[Trial]:
    cluster = f"test-{secrets.token_hex(4)}"
    before = ENGINES[kind](cluster)  # the look that it begins is its own
    until(lambda: all(node.used == 0 for node in before.nodes().values()))
    engine = ENGINES[kind](cluster)
    yield Trial(kind, cluster, engine, make_job)
    for lease in engine.adopt():
        engine.kill(lease)


def test_a_job_runs_on_each_of_its_nodes_to_its_end(trial: Trial) -> None:
    """A node has as many ranks as GPUs, however the engine divides the GPUs."""
    job = trial.make_job(sys.executable, "-c", PRINTS, ranks="gpu")
    trial.ended(trial.start(job, n1=2, n0=1))
    assert Contents(job / "g1").endings() == {"n0": 0, "n1": 0}
    found = environments(job)
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert all(one["LOCAL_WORLD_SIZE"] == str(len(gpus_of(one))) for one in found)


def test_parts_of_a_gpu_are_on_one_gpu_of_a_node_that_has_shards(trial: Trial) -> None:
    if "n2" not in trial.engine.nodes():
        pytest.skip("it has no shards")
    jobs = [trial.make_job(sys.executable, "-c", BEGETS, name=name) for name in ("a", "b", "c")]
    leases = [trial.start(job, n2=part) for job, part in zip(jobs[:2], (0.25, 0.5), strict=True)]
    assert len({shown_to(job) for job in jobs[:2]}) == 1
    until(lambda: trial.engine.nodes()["n2"] == Node(1, 0.75, shards=4))
    assert trial.whole_nodes() == {"n0": Node(2), "n1": Node(2)}
    finds_no_room(trial, jobs[2], n2=0.5)
    trial.engine.kill(leases[1])
    until(lambda: trial.engine.nodes()["n2"].used == 0.25)


def gpus_of(environment: dict[str, str]) -> list[str]:
    return environment["CUDA_VISIBLE_DEVICES"].split(",")


def shown_to(job: Path) -> tuple[str, ...]:
    """Return the GPUs that the first rank of a job sees."""
    return tuple(gpus_of(psutil.Process(pids(job)[0]).environ()))


def test_gangs_have_gpus_of_their_own(trial: Trial) -> None:
    jobs = [trial.make_job(sys.executable, "-c", BEGETS, name=name) for name in ("a", "b")]
    for job in jobs:
        trial.start(job, n1=1)
    found = {shown_to(job) for job in jobs}
    assert [len(gpus) for gpus in found] == [1, 1]


def test_nodes_tell_what_is_used_of_them(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even for a service that a job with a part of a GPU started."""
    monkeypatch.setenv("GPUSHARE_PART", "0.25")
    assert trial.whole_nodes() == {"n0": Node(2), "n1": Node(2)}
    job = trial.make_job(sys.executable, "-c", BEGETS)
    lease = trial.start(job, n0=2, n1=1)
    until(lambda: trial.whole_nodes() == {"n0": Node(2, used=2), "n1": Node(2, used=1)})
    pids(job)
    trial.engine.kill(lease)
    until(lambda: trial.whole_nodes() == {"n0": Node(2), "n1": Node(2)})


def test_what_finds_no_room_leaves_nothing(trial: Trial) -> None:
    first, second = trial.make_job(sys.executable, "-c", BEGETS), trial.make_job(5, 0, name="b")
    lease = trial.start(first, n1=1)
    pids(first)
    finds_no_room(trial, second, n0=2, n1=2)
    until(lambda: trial.engine.adopt() == {lease})
    assert not Contents(second / "g1").beats()


def finds_no_room(trial: Trial, job: Path, **where: Gpus) -> None:
    """Check that a job finds no room. An engine with its own queue keeps the job there until it is
    killed."""
    if trial.kind != "slurm":
        with pytest.raises(NoRoom):
            trial.start(job, **where)
        return
    waits = trial.start(job, **where)
    assert trial.engine.poll([waits])[waits].state == "pending"
    trial.engine.kill(waits)


@pytest.mark.parametrize("runs_first", [False, True])
def test_a_lease_is_seen_as_soon_as_it_was_started(trial: Trial, runs_first: bool) -> None:
    job = trial.make_job(sys.executable, "-c", BEGETS)
    with before_its_children() if runs_first else contextlib.nullcontext():
        for number in range(1, 11):
            lease = trial.start(job, number)
            seen = trial.runs(lease), lease in trial.engine.adopt()
            trial.engine.kill(lease)
            assert seen == (True, True)


@contextlib.contextmanager
def before_its_children() -> Iterator[None]:
    """Let this thread run before its children, if the system permits that. So it looks at them as
    early as possible, before the kernel has given them their environment."""
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(processors)})
        with contextlib.suppress(PermissionError):
            first = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, first, os.sched_param(1))
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, processors)


def test_each_node_is_asked_to_yield(trial: Trial) -> None:
    job = trial.make_job(100_000, 0.01)
    lease = trial.start(job, n0=1, n1=1)
    for _ in range(2):  # twice is harmless
        until(lambda: bool(generation.newest(job / "g1")))
        trial.engine.ask_yield(lease)
    trial.ended(lease)
    assert Contents(job / "g1").endings() == {"n0": YIELDED, "n1": YIELDED}


@pytest.mark.system
def test_a_gang_that_is_asked_at_once_yields_or_has_not_heard_it(trial: Trial) -> None:
    """The signal must not end the launcher, so the launcher may miss it and is asked again."""
    job = trial.make_job(100_000, 0.01)
    lease = trial.start(job)
    for _ in range(20):
        trial.engine.ask_yield(lease)
    while trial.runs(lease):
        trial.engine.ask_yield(lease)
    assert Contents(job / "g1").endings() == {"n0": YIELDED}


def test_all_processes_of_all_nodes_are_killed(trial: Trial) -> None:
    job = trial.make_job(sys.executable, "-c", BEGETS)
    lease = trial.start(job)
    there = pids(job)
    trial.engine.kill(lease)
    until(lambda: not any(map(lives, there)))
    trial.ended(lease)
    trial.engine.kill(lease)  # of what is gone: nothing
    assert {*Contents(job / "g1").endings().values()} <= {-signal.SIGTERM}  # none has failed


def test_what_a_dead_launcher_has_left_is_killed(trial: Trial) -> None:
    """The ranks end with their launcher, but their child processes may not."""
    if trial.kind == "slurm":
        pytest.skip("Slurm kills it where processes are in cgroups, which it has not here")
    job = trial.make_job(sys.executable, "-c", BEGETS)
    lease = trial.start(job)
    rank, child = pids(job)
    psutil.Process(rank).parent().kill()
    trial.ended(lease)
    until(lambda: not lives(rank))
    # Ray kills it as soon as the lease is seen to be gone.
    assert lives(child) or trial.kind == "ray"
    trial.engine.kill(lease)
    until(lambda: not lives(child))


def test_a_service_that_starts_finds_what_runs_of_its_cluster(trial: Trial) -> None:
    job = trial.make_job(sys.executable, "-c", BEGETS)
    lease = trial.start(job, n0=1, n1=1)
    pids(job)
    again = trial.another(trial.cluster)
    assert again.adopt() == {lease}
    found = again.poll([lease, Lease("b", 1, "none")])
    assert {one: status.state for one, status in found.items()} == {lease: "running"}
    assert trial.another(f"{trial.cluster}-2").adopt() == set()
    again.kill(lease)
    trial.ended(lease)
    assert again.adopt() == set()


def test_a_launcher_outlives_the_process_that_has_started_it(trial: Trial) -> None:
    job = trial.make_job(sys.executable, "-c", BEGETS)
    opened(job)
    code = (
        "from pathlib import Path;"
        "from tests.unit.cluster.engines.test_engines import ENGINES, Contents, until;"
        "from jupyter_gpushare.cluster.engines.engine import Start; import os;"
        f"start = Start({trial.cluster!r}, 'a', 1, Path({str(job)!r}), {{'n0': 1}});"
        f"ENGINES[{trial.kind!r}]({trial.cluster!r}).start(start);"
    )
    if trial.kind == "ray":  # it gives an actor up that has not begun when its maker ends
        code += f"until(lambda: Contents(Path({str(job / 'g1')!r})).beats());"
    code += "os.kill(os.getpid(), 9)"
    root = Path(__file__).parents[4]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert run.returncode == -signal.SIGKILL
    rank = pids(job)[0]
    assert not comes(lambda: not lives(rank), seconds=0.3)
    (lease,) = trial.engine.adopt()
    assert lease[:2] == ("a", 1)


def test_a_closed_generation_that_is_started_does_nothing(trial: Trial) -> None:
    job = trial.make_job(5, 0)
    opened(job)
    closed = generation.close_generation(job, 1)
    trial.ended(trial.engine.start(Start(trial.cluster, "a", 1, job, {"n0": 1})))
    assert iterations([closed]) == []
    assert not (job / "g1").exists()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gs.c.a.g3", ("a", 3)),
        ("gs.c.a-b.g30", ("a-b", 30)),
        ("gs.d.a.g3", None),
        ("gs.c.a.g", None),
        ("gs.c.a.g-1", None),
        ("gs.c.a.b.g1", None),
        ("x", None),
    ],
)
def test_a_name_tells_the_job_and_the_generation(name: str, found: tuple[str, int] | None) -> None:
    assert seam.parse(name, "c") == found


@pytest.mark.parametrize("text", ["", "n0", "n0=", "n0=x", "n0=1 n0=1", "n/0=1", "n0=-1", "n0=1/0"])
def test_nodes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="here=4"):
        declared(text)


@pytest.mark.parametrize(
    ("part", "shards", "count"),
    [(0.25, 4, 1), (0.26, 4, 2), (0.25, 2, 1), (0.07, 100, 7), (0.28, 25, 7), (0.99, 1, 1)],
)
def test_a_part_is_rounded_up_to_whole_shards(part: float, shards: int, count: int) -> None:
    assert seam.shards_of(part, shards) == count
