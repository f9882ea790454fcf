"""The service in its own process: the first submit starts it, and questions come over its
socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

import jupyter_gpushare as gpushare
from jupyter_gpushare.cluster.engines.engine import Start
from jupyter_gpushare.cluster.engines.local import Devices, LocalEngine, declared
from jupyter_gpushare.cluster.hands.hands import Hands
from jupyter_gpushare.cluster.program import local, look_seconds_of, rules_of, steady, this_machine
from jupyter_gpushare.devices import nvml, visible
from jupyter_gpushare.errors import DoesNotFit, InvalidValue, JobFailed
from jupyter_gpushare.jobs import pickled, rank, submission
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.jobs.job import Job, submit
from jupyter_gpushare.settings import Settings, as_environment, load
from jupyter_gpushare.tools.cli import main, make_parser
from jupyter_gpushare.tools.cli.submit import all_of_script, divided
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.jobs import ClusterView
from jupyter_gpushare.wire.messages import Error, Hello

from ...conftest import FakeGpus, Sessions, end_broker
from ...polling import until
from .conftest import MakesSettings
from .launch.test_launcher import PRINTS, environments, pids
from .program import kill
from .work import Makes, opened

COUNTS = """
import sys, time
for number in range(int(sys.argv[1])):
    print("iteration", number, flush=True)
    time.sleep(float(sys.argv[2]))
"""
TELLS = """
import json, os, sys
names = ("COLOUR", "LOCAL_DATA", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
others = {"SLURM_PROCID", "UNSET", "LC_TIME", "LD_LIBRARY_PATH"} & os.environ.keys()
print(json.dumps([os.getcwd(), *(os.environ[name] for name in names), *sorted(others)]))
"""
# It ends in the middle of a character.
HALVES = """
import os, sys, time
os.write(1, b"a\\xc3")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
os.write(1, b"\\xa9\\n\\xc3")
"""
# It announces that it saves, and keeps no more than its count.
CHECKPOINTS = """
import time
import jupyter_gpushare as gpushare
done = []
gpushare.checkpoint(done=done, every=0.5)
for number in gpushare.iterations(range(200)):
    done.append(number)
    time.sleep(0.02)
assert done == [*range(200)], done
"""

# It takes a turn, starts a service of jobs, tells the processes of both, and ends once it may.
STARTS = """
import os, pathlib, time
import jupyter_gpushare as gpushare
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire.client import Client
with gpushare.session(name="job"), gpushare.turn():
    with Client.connect(load()) as broker, Cluster(load(), start=True) as service:
        pids = f"{broker.welcome.pid} {service.look().pid}"
    pathlib.Path("pids.part").write_text(pids)
    os.rename("pids.part", "pids")
    while not os.path.exists("may_end"):
        time.sleep(0.02)
"""


# A training that knows nothing of sharing; it tells its weights to the last bit.
TRAINS = """
import hashlib, sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(net.parameters())
for number in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
number: int = 0
digest = hashlib.sha256(net.weight.detach().numpy().tobytes()).hexdigest()
print(__name__, __file__ == sys.argv[0], __annotations__, digest)
"""


# Names of a notebook whose functions read and change other names, which the cell may not read.
NOTEBOOK = """
rate, count, factor = 0.1, 0, 3
def scale():
    return factor
def train():
    return rate * scale()
def late():
    return unset
def bump():
    global count
    count += 1
def outer():
    return lambda: rate * scale()
class Net:
    def train(self):
        return rate * scale()
    @staticmethod
    def steps():
        return count
net = Net()
"""


@pytest.fixture
def settings(cluster_settings: MakesSettings) -> Settings:
    return cluster_settings(cluster_nodes="n0=2 n1=2")


@pytest.fixture
def shared(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The settings of sharing jobs, and of a broker that ends with the test."""
    given = replace(settings, device="host", start_seconds=60)
    for name, text in as_environment(given).items():
        monkeypatch.setenv(name, text)
    yield given
    end_broker(given)


def pids_of_both(settings: Settings) -> list[int]:
    """Return the process ids of a broker and of a service of jobs that both answer."""
    with Client.connect(settings, start=False) as broker, Cluster(settings) as service:
        return [broker.welcome.pid, service.look().pid]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def script(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return script


Scripts = Callable[[str], Path]


def runs(job: Job) -> None:
    until(lambda: "iteration 0" in job.log())


def test_a_script_runs_to_its_end(settings: Settings, script: Scripts) -> None:
    job = submit(script(COUNTS), "5", "0.01", gpus=3, settings=settings)
    view = job.wait(60)
    assert (view.state, view.gpus, view.generation) == ("done", 3, 1)
    assert job.log(2) == "iteration 3\niteration 4"
    assert "".join(job.follow()) == job.log()
    assert view.sentence.startswith("done ")
    with pytest.raises(InvalidValue, match="is a script or a cell, which returns nothing"):
        job.result()


@pytest.mark.system
def test_a_character_that_is_written_in_parts_is_whole(
    settings: Settings, script: Scripts, tmp_path: Path
) -> None:
    job = submit(script(HALVES), str(tmp_path / "go"), settings=settings)
    texts = job.follow()
    assert next(texts) == "a"
    (tmp_path / "go").touch()
    assert "".join(texts) == "é\n\ufffd"
    assert job.log() == "aé\n\ufffd"


@pytest.mark.system
def test_the_time_that_a_job_has_computed_is_told_while_it_computes(
    settings: Settings, script: Scripts
) -> None:
    """The time is current, and not the value of the job's last change of state."""
    since = time.monotonic()
    job = submit(script(COUNTS), "100000", "0.01", gpus=2, settings=settings)
    until(lambda: job.state == "running")
    before = job.look().computed
    until(lambda: job.look().computed > before + 1.0)
    assert job.look().computed <= 2 * (time.monotonic() - since)
    job.cancel()


@pytest.mark.system
def test_a_job_has_the_directory_and_the_environment_of_its_user(
    settings: Settings, script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the shell that started the service the job has only the order of GPUs."""
    unset = ("UNSET", "LC_TIME", "LD_LIBRARY_PATH")
    for name in ("LOCAL_DATA", "SLURM_PROCID", *unset):
        monkeypatch.setenv(name, "old")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    submit(script(COUNTS), "1", "0", settings=settings).wait(60)  # the service has started
    for name in unset:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    there = {"COLOUR": "green", "CUDA_VISIBLE_DEVICES": "7", "LOCAL_DATA": "new"}
    there["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
    there["LATIN"] = os.fsdecode(b"caf\xe9")  # JSON cannot hold it, and it is left out
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    job = submit(script(TELLS), gpus=2, nodes=1, settings=settings)
    job.wait(60)
    assert json.loads(job.log()) == [str(tmp_path), "green", "new", "0,1", "PCI_BUS_ID"]
    monkeypatch.setenv("LARGE", "x" * (1 << 20))
    with pytest.raises(InvalidValue, match=r"environment of a job are 1\.0 MiB at most, and not"):
        submit(script(TELLS), settings=settings)


@pytest.mark.parametrize(
    ("names", "is_so"),
    [
        ("RANK MASTER_ADDR GPUSHARE_JOB SLURM_JOB_ID RAY_ADDRESS PMI_RANK PMIX_RANK", False),
        ("OMPI_COMM_WORLD_RANK MPI_LOCALRANKID JUPYTERHUB_API_TOKEN JPY_API_TOKEN", False),
        ("ROLE_RANK LOCAL_RANK TORCHELASTIC_RUN_ID", False),
        ("HF_TOKEN WANDB_API_KEY JUPYTER_GPUSHARE_SOCKET RANKING MPI_HOME PATH", True),
        ("LOCAL_DATA GROUP_ID MASTER_KEY", True),
    ],
)
def test_a_job_gets_no_variable_of_another_job_or_of_a_server(names: str, is_so: bool) -> None:
    assert {submission.is_passed(name, "1") for name in names.split()} == {is_so}


@pytest.mark.system
def test_a_function_runs_on_each_rank_and_its_result_or_error_comes_back(
    settings: Settings,
) -> None:
    """A rank of a job that saves ignores SIGTERM."""
    scale = 3

    def rank_of(base: int) -> list[int]:
        import os
        import signal

        bears = callable(signal.getsignal(signal.SIGTERM))
        return [base * scale, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), bears]

    job = submit(rank_of, 7, gpus=3, rank_for_each_gpu=True, resumes=True, settings=settings)
    assert job.result(60) == [21, 0, 3, True]
    assert job.id.startswith("rank-of-")
    assert job.result() == [21, 0, 3, True]  # again
    large = submit(lambda: bytes(65 << 20), settings=settings)  # the limit is for what is sent
    assert len(large.result(60)) == 65 << 20
    fails = submit(lambda: 1 / 0, name="fails", settings=settings)
    with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero"):
        fails.result(60)


def test_what_cannot_be_pickled_is_named(settings: Settings) -> None:
    with pytest.raises(
        InvalidValue, match=r"len and its arguments cannot be sent to a job: .*lock"
    ):
        submit(len, threading.Lock(), settings=settings)
    with pytest.raises(InvalidValue, match=r"the variable lock cannot be sent to a job: .*lock"):
        pickled.of_cell("print(lock, name)", {"name": "a", "lock": threading.Lock()})
    with pytest.raises(InvalidValue, match=r"at most 64\.0 MiB are; write it to a file"):
        submit(len, bytes(65 << 20), settings=settings)
    with pytest.raises(InvalidValue, match="line 2 of the cell is wrong: "):
        pickled.of_cell("a = 1\nb = =", {})


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = b + 1", {"b"}),
        ("def f(x):\n    return x + y\nf(z)", {"f", "y", "z"}),
        ("class A:\n    b = c\n    def d(self): return e", {"c", "e"}),
        ("[i * k for i in range(n)]", {"k", "n", "range"}),
        ("import os\nos.getpid()", {"os"}),
        ("a += 1\nb[0] += 1", {"a", "b"}),
        ("def f():\n    global a\n    a += 1\n    b = 0\n    b += 1", {"a"}),
        ("del a, b[0]", {"a", "b"}),
    ],
)
def test_the_names_that_a_cell_reads_are_found(source: str, names: set[str]) -> None:
    assert pickled.read_by(source) - {".0"} == names


@pytest.mark.system
@pytest.mark.parametrize(
    "cell",
    [
        "rate = 0.5\nprint(train(), Net().train(), net.train())",
        "unset = 7\nprint(late())",
        "bump()\nbump()\nprint(count)",
        "count += 1\nbump()\nprint(count)",
        "del rate\nprint('rate' in globals(), Net().steps())",
        "def scale():\n    return 4\nprint(train(), outer()())",
    ],
)
def test_the_notebooks_functions_and_a_cell_have_the_same_globals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(NOTEBOOK, vars(main))
    for name, data in pickled.of_cell(cell, vars(main)).items():
        (tmp_path / name).write_bytes(data)
    told = {"GPUSHARE_JOB": str(tmp_path), "GPUSHARE_GENERATION": "1"}
    words = [sys.executable, "-m", pickled.MODULE]
    job = subprocess.run(words, env=os.environ | told, capture_output=True, text=True)
    alone = subprocess.run(
        [sys.executable, "-c", NOTEBOOK + cell], stdout=subprocess.PIPE, text=True
    )
    assert job.stdout == alone.stdout, job.stderr


@pytest.mark.system
def test_a_job_waits_for_its_gpus_and_may_be_cancelled(settings: Settings, script: Scripts) -> None:
    first = submit(script(COUNTS), "1000", "0.05", gpus=4, settings=settings)
    runs(first)
    second = submit(script(COUNTS), "1", "0", gpus=2, settings=settings)
    assert second.look().sentence == "waits for 2 GPUs; 0 are free"
    third = submit(script(COUNTS), "1", "0", settings=settings)
    assert (first.look().position, second.look().position, third.look().position) == (None, 1, 2)
    assert second.look().sentence == "waits for 2 GPUs, number 1 of 2 in line; 0 are free"
    third.cancel()
    until(lambda: first.wait(0.0).state == "running")
    first.cancel()
    second.wait(60)
    assert first.state == "cancelled"
    with pytest.raises(JobFailed, match="cancelled"):
        first.wait()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": 0}, "a part of one in hundredths such as 0.25, and not 0"),
        ({"gpus": 1.5}, "a job has a whole number of GPUs from 1 on"),
        ({"nodes": -1}, "1 node or more, or 0 for any number, not -1"),
        ({"resumes": True, "restarts": True}, "not both"),
        ({"options": ["--comment=a\n"]}, "is one line of text, and not"),
        ({"options": ["--account=a"]}, "--account=a is for sbatch, and these jobs do not run on"),
        ({"gpus": 3, "nodes": 1}, "3 GPUs on 1 node never fits: the nodes have at most n0 2, n1 2"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_and_leaves_nothing(
    settings: Settings, script: Scripts, options: dict[str, int], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises((InvalidValue, DoesNotFit), match=sentence):
        submit(script(COUNTS), settings=settings, **options)  # type: ignore[arg-type]
    assert [*tmp_path.glob("state/jobs/*")] == []


def test_a_job_whose_files_cannot_be_written_leaves_none(
    settings: Settings, tmp_path: Path
) -> None:
    files = {"call.pickle": b"", "no/such": b""}
    with pytest.raises(InvalidValue, match="cannot be made: No such file"):
        submission.made(settings, ["true"], submission.Wanted(), files)
    assert [*tmp_path.glob("state/jobs/*")] == []


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("train.py -- a -- -A", "-- a"),
        ("train.py -- -- -A", "--"),
        ("train.py -- -- a -- -A", "-- -- a"),
        ("--gpus 2 train.py b -- a -- -A", "b -- a"),
        ("-- train.py a -- -A", "a"),
        ("train.py -- -A", ""),
    ],
)
def test_all_words_but_those_behind_the_last_end_are_of_the_script(line: str, given: str) -> None:
    words, options = divided(["submit", *line.split()])
    found = make_parser().parse_args(words)
    assert ([*all_of_script(words, found.arguments)], options) == (given.split(), ["-A"])


def test_there_is_no_job_without_a_script(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="there is no script"):
        submit(tmp_path / "nowhere.py", settings=settings)


@pytest.mark.system
def test_garbage_gets_a_sentence_and_harms_no_other(settings: Settings) -> None:
    with Cluster(settings, start=True) as cluster:
        path = Path(settings.socket).with_name("cluster.sock")
        for data in (b"GET / HTTP/1.1\r\n\r\n", framing.encode(Hello(1)), b"\0\0"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                bodies = [*framing.Frames().feed(stranger.recv(4096))]
                assert [type(framing.decode_from_cluster(each)) for each in bodies] in ([Error], [])
        assert isinstance(cluster.look(), ClusterView)


@pytest.mark.system
def test_a_job_yields_by_the_settings_of_the_service(settings: Settings, script: Scripts) -> None:
    quick = replace(
        settings, cluster_bounds="0.5 1000", cluster_least_seconds=0.2, cluster_nodes="n0=2"
    )
    long = submit(script(CHECKPOINTS), gpus=2, name="long", settings=quick)
    until(lambda: long.look().iteration is not None and long.look().computed > 0.5)
    short = submit(len, "abc", gpus=2, name="short", settings=quick)
    assert short.result(60) == 3
    view = long.wait(60)
    assert (view.state, view.yields) == ("done", 1)


@pytest.mark.parametrize("bounds", ["0", "5 5", "60 10", "0 5"])
def test_bounds_of_queues_rise(settings: Settings, bounds: str) -> None:
    with pytest.raises(InvalidValue, match="each larger than the one before it, and not"):
        rules_of(replace(settings, cluster_bounds=bounds))


def test_jobs_of_slurm_are_looked_at_less_often(settings: Settings) -> None:
    for engine, said, seconds in (("slurm", 0, 5), ("slurm", 2, 2), ("local", 0, 1)):
        given = replace(settings, cluster_engine=engine, cluster_look_seconds=said)
        assert look_seconds_of(given) == seconds


def test_the_clock_of_a_service_goes_on_where_that_of_the_machine_leaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = steady(least=0.0)
    begun = clock()
    assert begun == pytest.approx(time.time(), abs=600)
    for leap in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda leap=leap: begun + leap)
        assert clock() == pytest.approx(begun, abs=600)
    assert steady(least=begun + 7200)() >= begun + 7200  # the journal knows a later time


@pytest.mark.system
def test_a_service_that_is_killed_is_started_by_the_next_question(
    settings: Settings, script: Scripts
) -> None:
    job = submit(script(COUNTS), "40", "0.05", gpus=2, settings=settings)
    runs(job)
    with Cluster(settings) as cluster:
        pid = cluster.look().pid
    kill(pid, signal.SIGKILL)
    view = job.wait(60)
    assert (view.state, view.generation, view.losses) == ("done", 1, 0)
    assert job.log().count("iteration") == 40


@pytest.mark.system
def test_a_service_without_jobs_ends_and_one_whose_socket_is_gone_too(settings: Settings) -> None:
    for change in ({"idle_exit_seconds": 0.2}, {}):
        with Cluster(load(as_environment(settings), **change), start=True) as cluster:
            pid = cluster.look().pid
        if not change:
            Path(settings.socket).with_name("cluster.sock").unlink()
        until(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]


def test_a_broker_and_a_service_that_a_job_has_started_are_no_part_of_it(
    shared: Settings, make_job: Makes
) -> None:
    engine = LocalEngine("test", declared("used-by-others=90 n0=1"))
    job = make_job(sys.executable, "-c", STARTS)
    opened(job)
    lease = engine.start(Start("test", job.name, 1, job, {"n0": 1}))
    started = pids(job)
    engine.kill(lease)
    assert engine.adopt() == set()
    assert engine.nodes()["n0"].used == 0
    assert pids_of_both(shared) == started
    for pid in started:
        assert {"GPUSHARE_LEASE", "GPUSHARE_JOB"}.isdisjoint(psutil.Process(pid).environ())


@pytest.mark.system
@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_sessions_of_others_go_on_with_the_broker_of_a_job_that_is_over(
    shared: Settings, script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.chdir(tmp_path)
    job = submit(script(STARTS), settings=shared)
    until((tmp_path / "pids").exists)
    before = pids_of_both(shared)
    with gpushare.session(shared, name="notebook") as session:
        if state == "cancelled":
            job.cancel()
        else:
            (tmp_path / "may_end").touch()
        until(lambda: job.look().state == state)
        for _ in range(3):
            with gpushare.turn():
                assert session.holding
        assert pids_of_both(shared) == before


@pytest.mark.system
def test_a_training_takes_turns_with_notebooks_and_has_the_same_weights(
    shared: Settings, script: Scripts, sessions: Sessions, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(TRAINS)
    with gpushare.session(shared, name="notebook"):
        with gpushare.turn():
            job = submit(path, "50", settings=shared)
            name = f"job {job.id}"
            until(lambda: name in sessions() and sessions()[name].state == "waiting")
            assert main(["nodes"]) == 0
            assert (
                "2 sessions of notebooks and jobs on the devices of this" in capsys.readouterr().err
            )
            assert job.state == "running"
        job.wait(60)
    alone = subprocess.run([sys.executable, path, "50"], stdout=subprocess.PIPE, text=True)
    assert job.log() == alone.stdout


def test_a_rank_shares_the_gpus_that_its_job_was_given(gpus: FakeGpus) -> None:
    gpus.say(*(f"gpu GPU-{name} {1 << 30} 0 NVIDIA L4" for name in "abc"))
    assert rank.place_of({}, Settings()) == {}
    assert rank.place_of({"CUDA_VISIBLE_DEVICES": "1"}, Settings()) == {"device": "cuda:0"}
    both = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert rank.place_of(both, Settings()) == {"devices": 2}
    assert rank.place_of(both | {"LOCAL_RANK": "1"}, Settings()) == {"device": "cuda:1"}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [(None, "GPU-a MIG-0 MIG-1"), ("1", "MIG-0 MIG-1"), ("1,0", "MIG-0 MIG-1 GPU-a"), ("", "none")],
)
def test_a_job_gets_gpus_of_its_service_by_uuid_and_slices_in_the_place_of_their_card(
    shown: str | None,
    expected: str,
    gpus: FakeGpus,
    make_job: Makes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that the job starts has the same GPUs."""
    slices = [f"slice MIG-{n} 1000 0 NVIDIA H100 MIG 1g.10gb" for n in range(2)]
    gpus.say("gpu GPU-a 1000 0 NVIDIA H100", "gpu GPU-b 1000 0 NVIDIA H100", "mig", *slices)
    if shown is not None:
        monkeypatch.setenv(visible.VARIABLE, shown)
    here = {"here": Devices(expected.split(), is_host=shown == "")}
    assert this_machine() == here
    job, engine = make_job(sys.executable, "-c", PRINTS), local(load({}), Hands())("test")
    opened(job, here=1)
    lease = engine.start(Start("test", job.name, 1, job, {"here": 1}))
    until(lambda: not engine.poll([lease]))
    (found,) = environments(job)
    assert found[visible.VARIABLE] in here["here"].gpus
    for name in (visible.VARIABLE, visible.BEFORE):
        monkeypatch.setenv(name, found[name])
    assert this_machine() == here


@pytest.mark.system
def test_a_machine_without_a_gpu_says_so(
    shared: Settings, script: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    if nvml.gpus():
        pytest.skip("this machine has one")
    here = replace(shared, cluster_nodes="")
    monkeypatch.delenv("JUPYTER_GPUSHARE_CLUSTER_NODES")
    job = submit(script(COUNTS), "1000", "0.05", settings=here)
    runs(job)
    no_gpu = "this machine has no GPU, and runs one job at a time on its device host"
    waits = submit(script(COUNTS), "1", "0", settings=here)
    assert waits.look().sentence == f"waits for the device host; {no_gpu}"
    with pytest.raises(DoesNotFit, match=f"a job of 2 GPUs never fits: {no_gpu}"):
        submit(script(COUNTS), gpus=2, settings=here)
    with Cluster(here) as cluster:
        (node,) = cluster.look().nodes
    assert (node.name, node.gpus, node.used, node.ours, node.reason) == ("here", 0, 0, 0, no_gpu)
    job.cancel()
    waits.wait(60)


@pytest.mark.system
def test_the_command_line_submits_and_shows(
    settings: Settings,
    script: Scripts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in as_environment(settings).items():
        monkeypatch.setenv(name, text)

    def said(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    assert said("jobs") == "no jobs wait or run\n"
    id = said("submit", "--gpus", "2", "--name", "My net", str(script(COUNTS)), "3", "0.01").strip()
    assert id.startswith("my-net-")
    assert said("logs", "-f", "my-net") == "iteration 0\niteration 1\niteration 2\n"
    assert "done" in said("jobs", "--all")
    (row,) = json.loads(said("jobs", "--all", "--json"))
    assert (row["id"], row["state"], row["gpus"]) == (id, "done", 2)
    assert "n1" in said("nodes")
    assert said("cancel", "my-net").startswith(f"{id} has already ended: done")
    (used,) = json.loads(said("report", "--jobs", "--by", "job", "--json"))
    assert (used["name"], used["jobs"]) == (id, 1)
    assert used["gpu_seconds"] == pytest.approx(row["computed"])
    assert "GPU time" in said("report", "--jobs")
    assert said("report", "--jobs", "--csv").startswith("user,gpu_seconds,jobs")
    assert main(["submit", str(script(COUNTS)), "3", "--", "--account=a"]) == 1
    assert "--account=a is for sbatch, and these" in capsys.readouterr().err
    said("submit", "--name", "my net", str(script(COUNTS)), "3", "0.01")
    assert main(["cancel", "my-net"]) == 1
    assert "the ids of 2 jobs begin with my-net: my-net-" in capsys.readouterr().err
    for command in ("cancel", "logs"):
        assert main([command, ""]) == 1
        said_of_none = "the id of a job, or its beginning, is missing\n"
        assert capsys.readouterr().err == f"jupyter gpushare: {said_of_none}"
    assert main(["cancel", "b"]) == 1
    assert capsys.readouterr().err == "jupyter gpushare: there is no job b\n"


@pytest.mark.system
def test_other_users_cannot_ask(settings: Settings) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    with Cluster(settings, start=True):
        path = Path(settings.socket).with_name("cluster.sock")
        path.parent.chmod(0o755)
        path.chmod(0o666)
        if (child := os.fork()) == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                os._exit(b"not_permitted" not in stranger.recv(4096))
        _, status = os.waitpid(child, 0)
        assert status == 0
