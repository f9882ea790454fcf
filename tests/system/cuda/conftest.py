"""A CUDA build of PyTorch on a GPU that is main memory: `make test-cuda`, or `run` beside this.

Each test starts processes of its own, which call one function of a program and answer with JSON.
Without the environment that `run` gives, there is nothing to collect here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import Snapshot

from ...conftest import FakeGpus, Sessions, private_broker
from ...makers import maker
from ...polling import until
from .programs.program import Bytes, has

PROGRAMS = Path(__file__).resolve().parent / "programs"
GIB = 1 << 30
LOOK_SECONDS = 0.1
SECONDS = 800  # of one process; a safety net
IS_HERE = "FAKE_CUDA_KERNELS" in os.environ
collect_ignore_glob = [] if IS_HERE else ["test_*.py"]

TRAININGS = "trainings.py"
SMALL, LARGE = 32, 96  # channels; an iteration of the second needs three times as much

Run = Callable[..., Any]
Start = Callable[..., "Process"]
Ends = Callable[..., None]
GoesOn = Callable[..., None]


class Process:
    """A process that runs `function` of a program; `go_on` writes to its standard input."""

    def __init__(
        self, program: str, function: str, arguments: tuple[Any, ...], **more: str
    ) -> None:
        words = [sys.executable, str(PROGRAMS / program), function, json.dumps(arguments)]
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self) -> str:
        """Return its next line; it prints one between two `go_on`."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            pytest.fail(f"the process has ended, and returned {self.answer()}")
        return line.strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the result of the function."""
        try:
            printed, words = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(6)  # faulthandler tells where each thread is
            words = self._process.communicate()[1]
            pytest.fail(f"not done after {SECONDS} s:\n{words[-4000:]}")
        assert self._process.returncode == 0, words[-4000:]
        return json.loads(printed.splitlines()[-1])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(program, function, *arguments, NAME=value)`: all that a test starts have one GPU."""

    def start(program: str, function: str, *arguments: Any, **environment: str) -> Process:
        environment = {"FAKE_CUDA_HOST": tmp_path.name, **environment}
        return Process(program, function, arguments, **environment)

    with maker(start, Process.end) as started:
        yield started


@pytest.fixture
def run(start: Start) -> Run:
    """One process alone, and its answer."""
    return lambda *words, **environment: start(*words, FAKE_CUDA_HOST="", **environment).answer()


def uuid_of(number: int) -> str:
    """The UUID of a GPU of the host, as the fake driver has it."""
    return f"GPU-{UUID(bytes=bytes([number + 1] * 16))}"


def card(number: int, size: int = 4 * GIB) -> str:
    """Return the words that tell the fake NVML of a GPU."""
    return f"gpu {uuid_of(number)} {size} 0 NVIDIA L4"


@pytest.fixture
def gpu_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The host has a GPU of that many bytes, for the broker and all that is started from now on."""

    def gpu_of(size: int) -> None:
        FakeGpus(tmp_path / "nvml").say(card(0, size))
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
        monkeypatch.setenv("FAKE_CUDA_BYTES", str(size))

    return gpu_of


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """The host has two GPUs of 4 GiB."""
    gpus = FakeGpus(tmp_path / "nvml")
    gpus.say(card(0), card(1))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
    monkeypatch.setenv("FAKE_CUDA_COUNT", "2")
    return gpus


GivenAway = Callable[..., Bytes]


@pytest.fixture
def given_away(tmp_path: Path) -> GivenAway:
    """Return the memory of GPU number `gpu` of this test that these processes have, or all
    processes."""

    def given_away(*processes: int, gpu: int = 0) -> Bytes:
        found: Bytes = {}
        for process in processes or psutil.pids():
            found |= has(process, gpu, tmp_path.name)
        return found

    return given_away


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A private broker, whose turns end at each boundary where another session waits."""
    own = {"device": "cuda:0", "cuda_context_bytes": 0}
    at_once = {"quantum_seconds": 1e-6, "half_life_seconds": 1e-6}
    with private_broker(**own, **at_once) as given, watched(given, tmp_path.name) as wrong:
        yield given
    assert not wrong, wrong


@contextmanager
def watched(given: Settings, host: str) -> Iterator[list[str]]:
    """Collect excesses that last, during the block."""
    wrong: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        before: set[str] = set()
        while not ended.wait(LOOK_SECONDS):
            with contextlib.suppress(GpuShareError):  # there is no broker, or it was killed
                with Client.connect(given, "watching", start=False) as client:
                    after = set(excesses(client.look(), host))
                wrong.extend(before & after)  # a single finding may have changed meanwhile
                before = after

    thread = threading.Thread(target=watch)
    thread.start()
    yield wrong
    ended.set()
    thread.join()


def has_of(process: int, gpu: int, host: str) -> Bytes:
    """Memory of this test's GPU, or of its private one, that a process has."""
    return has(process, gpu, host) | has(process, gpu, "")


def excesses(snapshot: Snapshot, host: str) -> Iterator[str]:
    """Yield GPUs on which sessions and lanes together have more memory than there is. The memory of
    sessions is what they have reported, or what the driver has given to them, if that is more; a
    lane counts with its size."""
    for device in snapshot.devices:
        if device.name == "host":
            continue
        gpu = int(device.name.partition(":")[2])
        of_lanes = has_of(snapshot.broker.pid, gpu, host).keys()
        lost: Bytes = {}
        for view in device.sessions:
            lost |= has_of(view.pid, gpu, host)
        private = sum(size for file, size in lost.items() if file not in of_lanes)
        most = max(private, device.persistent_bytes) + sum(lane.bytes for lane in device.lanes)
        if most > device.capacity_bytes:
            yield f"{device.name}: {most} bytes, of which {private} are private"


@pytest.fixture
def goes_on(sessions: Sessions) -> GoesOn:
    """Wait until each of these sessions has run some more iterations."""

    def goes_on(*names: str) -> None:
        before = sessions()
        until(
            lambda: all(sessions()[name].iterations > before[name].iterations + 5 for name in names)
        )

    return goes_on


@pytest.fixture
def ends_as_alone(run: Run) -> Ends:
    """End a training; its result must be that without sharing."""

    def ends_as_alone(process: Process, width: int, *more: bool) -> None:
        process.go_on()
        assert process.says() == "done"
        process.go_on()
        said = process.answer()
        assert said == run(TRAININGS, "plain", width, len(said["losses"]), *more)

    return ends_as_alone
