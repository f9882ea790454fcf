"""The contract of an engine: what each of its six verbs does, with real processes.

An engine of another kind is one row of ENGINES.
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

import pytest

from jupyter_gpushare.cluster import generation
from jupyter_gpushare.cluster.engines.engine import (
    Engine,
    Lease,
    Node,
    Start,
    Status,
    parse,
    shards_of,
)
from jupyter_gpushare.cluster.engines.local import Devices, LocalEngine, declared
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.cluster.generation import YIELDED
from jupyter_gpushare.errors import InvalidValue, NoRoom
from jupyter_gpushare.wire.jobs import Gpus

from ..polling import comes, until
from .conftest import ADDRESS, ON_RAY
from .test_launcher import BEGETS, PRINTS, environments, lives, pids
from .work import Makes, iterations, opened

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


@pytest.fixture
def make_engine(kind: str) -> Callable[[str], Engine]:
    return ENGINES[kind]


@pytest.fixture
def cluster() -> str:
    """A name of its own, since an engine finds what runs by it."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def engine(make_engine: Callable[[str], Engine], cluster: str) -> Iterator[Engine]:
    engine = make_engine(cluster)
    until(lambda: all(node.used == 0 for node in engine.nodes().values()))
    yield engine
    for lease in engine.adopt():
        engine.kill(lease)


@pytest.fixture
def start(engine: Engine, cluster: str) -> Callable[..., Lease]:
    def start(job: Path, number: int = 1, **where: Gpus) -> Lease:
        where = where or {"n0": 1}
        if not generation.path_of(job, number).exists():
            opened(job, number, **{node: math.ceil(gpus) for node, gpus in where.items()})
        return engine.start(Start(cluster, job.name, number, job, where))

    return start


Starts = Callable[..., Lease]


def whole_nodes(engine: Engine) -> dict[str, Node]:
    nodes = engine.nodes()
    return {name: nodes[name] for name in WHOLE}


def runs(engine: Engine, lease: Lease) -> bool:
    return lease in engine.poll([lease])


def ended(engine: Engine, lease: Lease) -> None:
    until(lambda: not runs(engine, lease))


@pytest.mark.system
def test_a_job_runs_on_each_of_its_nodes_to_its_end(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    job = make_job(sys.executable, "-c", PRINTS, ranks="gpu")
    lease = start(job, n1=2, n0=1)
    ended(engine, lease)
    assert generation.endings(job / "g1") == {"n0": 0, "n1": 0}
    assert [one["RANK"] for one in environments(job)] == ["0", "1", "2"]


def test_ranks_of_nodes_that_have_unequal_parts_are_as_many_as_their_gpus(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    """Whatever the engine makes of the division."""
    job = make_job(sys.executable, "-c", PRINTS, ranks="gpu")
    lease = start(job, n0=1, n1=2)
    ended(engine, lease)
    found = environments(job)
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert all(one["LOCAL_WORLD_SIZE"] == str(len(gpus_of(one))) for one in found)


def test_parts_of_a_gpu_are_on_one_gpu_of_a_node_that_has_shards(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    if "n2" not in engine.nodes():
        pytest.skip("it has no shards")
    jobs = [make_job(sys.executable, "-c", BEGETS, name=name) for name in ("a", "b", "c")]
    leases = [start(job, n2=part) for job, part in zip(jobs[:2], (0.25, 0.5), strict=True)]
    found = {environment_of(pids(job)[0])["CUDA_VISIBLE_DEVICES"] for job in jobs[:2]}
    assert len(found) == 1
    until(lambda: engine.nodes()["n2"] == Node(1, 0.75, shards=4))
    assert whole_nodes(engine) == {"n0": Node(2), "n1": Node(2)}
    is_refused_or_pending(engine, lambda: start(jobs[2], n2=0.5))
    engine.kill(leases[1])
    until(lambda: engine.nodes()["n2"].used == 0.25)


def is_refused_or_pending(engine: Engine, start: Callable[[], Lease]) -> None:
    try:
        lease = start()
    except NoRoom:
        return
    assert engine.poll([lease])[lease].state == "pending"
    engine.kill(lease)


def gpus_of(environment: dict[str, str]) -> list[str]:
    return environment["CUDA_VISIBLE_DEVICES"].split(",")


def test_gangs_have_gpus_of_their_own(engine: Engine, start: Starts, make_job: Makes) -> None:
    job, other = (make_job(sys.executable, "-c", BEGETS, name=name) for name in ("a", "b"))
    for each in (job, other):
        start(each, n1=1)
    found = [environment_of(pids(each)[0])["CUDA_VISIBLE_DEVICES"] for each in (job, other)]
    assert len(set(found)) == 2
    assert all(len(gpus.split(",")) == 1 for gpus in found)


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_nodes_tell_what_is_used_of_them(engine: Engine, start: Starts, make_job: Makes) -> None:
    assert whole_nodes(engine) == {"n0": Node(2), "n1": Node(2)}
    job = make_job(sys.executable, "-c", BEGETS)
    lease = start(job, n0=2, n1=1)
    until(lambda: whole_nodes(engine) == {"n0": Node(2, used=2), "n1": Node(2, used=1)})
    pids(job)
    engine.kill(lease)
    until(lambda: whole_nodes(engine) == {"n0": Node(2), "n1": Node(2)})


def test_what_finds_no_room_leaves_nothing(
    kind: str, engine: Engine, start: Starts, make_job: Makes
) -> None:
    """An engine with a queue of its own has it there until it is killed."""
    first, second = make_job(sys.executable, "-c", BEGETS), make_job(5, 0, name="b")
    lease = start(first, n1=1)
    pids(first)
    if kind != "slurm":
        with pytest.raises(NoRoom):
            start(second, n0=2, n1=2)
    else:
        waits = start(second, n0=2, n1=2)
        assert engine.poll([waits]) == {waits: Status("pending")}
        engine.kill(waits)
    until(lambda: engine.adopt() == {lease})
    assert not generation.beats(second / "g1")


def test_a_lease_is_told_as_running_until_it_is_gone(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    lease = start(make_job(sys.executable, "-c", BEGETS))
    until(lambda: engine.poll([lease, Lease("b", 1, "none")]) == {lease: Status("running")})
    engine.kill(lease)
    ended(engine, lease)


@pytest.mark.parametrize("runs_first", [False, True])
def test_a_lease_is_seen_as_soon_as_it_was_started(
    engine: Engine, start: Starts, make_job: Makes, runs_first: bool
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    with before_its_children() if runs_first else contextlib.nullcontext():
        for number in range(1, 11):
            lease = start(job, number)
            seen = runs(engine, lease), lease in engine.adopt()
            engine.kill(lease)
            assert seen == (True, True)


@contextlib.contextmanager
def before_its_children() -> Iterator[None]:
    """This thread has a processor before its children have it, where the system permits that. So it
    looks at them as early as can be: the kernel has not yet given them their environment."""
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


def test_each_node_is_asked_to_yield(engine: Engine, start: Starts, make_job: Makes) -> None:
    job = make_job(100_000, 0.01)
    lease = start(job, n0=1, n1=1)
    for _ in range(2):  # twice is harmless
        until(lambda: bool(generation.newest(job / "g1")))
        engine.ask_yield(lease)
    ended(engine, lease)
    assert generation.endings(job / "g1") == {"n0": YIELDED, "n1": YIELDED}


@pytest.mark.system
def test_a_gang_that_is_asked_at_once_yields_or_has_not_heard_it(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    """It must not end of it; so it is asked again."""
    job = make_job(100_000, 0.01)
    lease = start(job)
    for _ in range(20):
        engine.ask_yield(lease)
    while runs(engine, lease):
        engine.ask_yield(lease)
    assert generation.endings(job / "g1") == {"n0": YIELDED}


def test_all_processes_of_all_nodes_are_killed(
    engine: Engine, start: Starts, make_job: Makes
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    lease = start(job)
    there = pids(job)
    engine.kill(lease)
    until(lambda: not any(map(lives, there)))
    ended(engine, lease)
    engine.kill(lease)  # of what is gone: nothing
    assert {*generation.endings(job / "g1").values()} <= {-signal.SIGTERM}  # none has failed


def test_what_a_dead_launcher_has_left_is_killed(
    kind: str, engine: Engine, start: Starts, make_job: Makes
) -> None:
    """Its ranks end with it, and what they have started may not."""
    if kind == "slurm":
        pytest.skip("Slurm kills it where processes are in cgroups, which it has not here")
    job = make_job(sys.executable, "-c", BEGETS)
    lease = start(job)
    rank, child = pids(job)
    os.kill(parent_of(rank), signal.SIGKILL)
    ended(engine, lease)
    assert lives(child) or kind == "ray"  # which kills it as soon as the lease is seen to be gone
    engine.kill(lease)
    until(lambda: not lives(child))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_service_that_starts_finds_what_runs_of_its_cluster(
    engine: Engine,
    make_engine: Callable[[str], Engine],
    cluster: str,
    start: Starts,
    make_job: Makes,
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    lease = start(job, n0=1, n1=1)
    pids(job)
    again = make_engine(cluster)
    assert again.adopt() == {lease}
    assert runs(again, lease)
    assert make_engine(f"{cluster}-2").adopt() == set()
    again.kill(lease)
    ended(again, lease)
    assert again.adopt() == set()


def test_a_launcher_outlives_the_process_that_has_started_it(
    kind: str, engine: Engine, cluster: str, make_job: Makes
) -> None:
    job = make_job(sys.executable, "-c", BEGETS)
    opened(job)
    code = (
        "from pathlib import Path;"
        "from tests.cluster.test_engines import ENGINES, generation, until;"
        "from jupyter_gpushare.cluster.engines.engine import Start; import os;"
        f"start = Start({cluster!r}, 'a', 1, Path({str(job)!r}), {{'n0': 1}});"
        f"ENGINES[{kind!r}]({cluster!r}).start(start);"
    )
    if kind == "ray":  # it gives an actor up that has not begun when its maker ends
        code += f"until(lambda: generation.beats(Path({str(job / 'g1')!r})));"
    code += "os.kill(os.getpid(), 9)"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert run.returncode == -signal.SIGKILL
    rank = pids(job)[0]
    assert not comes(lambda: not lives(rank), seconds=0.3)
    (lease,) = engine.adopt()
    assert lease[:2] == ("a", 1)


def test_a_closed_generation_that_is_started_does_nothing(
    engine: Engine, cluster: str, make_job: Makes
) -> None:
    job = make_job(5, 0)
    opened(job)
    closed = generation.close_generation(job, 1)
    ended(engine, engine.start(Start(cluster, "a", 1, job, {"n0": 1})))
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
    assert parse(name, "c") == found


@pytest.mark.parametrize("text", ["", "n0", "n0=", "n0=x", "n0=1 n0=1", "n/0=1", "n0=-1", "n0=1/0"])
def test_nodes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="here=4"):
        declared(text)


@pytest.mark.parametrize(
    ("part", "shards", "count"),
    [(0.25, 4, 1), (0.26, 4, 2), (0.25, 2, 1), (0.07, 100, 7), (0.28, 25, 7), (0.99, 1, 1)],
)
def test_a_part_is_rounded_up_to_whole_shards(part: float, shards: int, count: int) -> None:
    assert shards_of(part, shards) == count


def test_a_whole_job_is_whole_where_the_service_was_started_by_a_job_of_a_part(
    make_job: Makes, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_PART", "0.25")
    engine, job = local(cluster), make_job(sys.executable, "-c", BEGETS)
    opened(job, 1, n0=1)
    lease = engine.start(Start(cluster, job.name, 1, job, {"n0": 1}))
    try:
        assert engine.nodes()["n0"].used == 1
    finally:
        engine.kill(lease)


def test_declared_nodes_have_different_gpus() -> None:
    assert declared("n0=2 n1=1/4") == {"n0": Devices(["0", "1"]), "n1": Devices(["2"], shards=4)}
