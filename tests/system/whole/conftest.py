"""Real kernels that share a device through a real broker."""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.manager import KernelManager

from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.snapshot import LaneView

from ...conftest import Look
from ...makers import maker
from ...polling import comes, until
from ...programs.cells import BODIES, LARGE, MODEL
from ..faults.scene import Nursery, open_memory
from .scribbler import CHANGE_OVER, TELL, Scribbler

CELL_SECONDS = 240
RUN_ALL = """
import contextlib, io, json, sys

found = {}
for case, source in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, case, "exec"), {"__name__": "__main__"})
    found[case] = json.loads(printed.getvalue().splitlines()[-1])
print(json.dumps(found))
"""


KERNEL = "from ipykernel.kernelapp import IPKernelApp\nIPKernelApp.launch_instance(['-f', {!r}])"

Notebooks = Callable[..., "Notebook"]
Sizes = Callable[[], list[int]]


class BornClient(BlockingKernelClient):
    """Asks the system whether its kernel is alive: on a busy machine one that has just started
    misses heartbeats."""

    is_born_alive: Callable[[], bool]

    async def _async_is_alive(self) -> bool:
        return self.is_born_alive()


class BornKernel:
    """The part of a KernelManager that a Notebook uses, for a kernel that is born in a nursery:
    there PyTorch is imported already, which takes longer than most tests."""

    def __init__(self, nursery: Nursery, sockets: str) -> None:
        self._nursery, self._sockets = nursery, sockets

    def start_kernel(self, env: dict[str, str]) -> None:
        self._file, _ = write_connection_file(transport="ipc", ip=self._sockets)
        self._party = self._nursery.party(KERNEL.format(self._file), env)
        self._process = psutil.Process(self._party.pid)

    def blocking_client(self) -> BlockingKernelClient:
        client = BornClient(connection_file=self._file)
        client.load_connection_file()
        client.is_born_alive = self.is_alive
        return client

    def is_alive(self) -> bool:
        return self._process.is_running()

    def interrupt_kernel(self) -> None:
        self._party.signal(signal.SIGINT)

    def shutdown_kernel(self, now: bool) -> None:
        assert now
        self._party.end()
        self._process.wait()
        Path(self._file).unlink(missing_ok=True)


class Cell:
    """The result of one execution: its outputs in order, and the reply."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] = {}
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for found, content in self.messages if found == kind]

    @property
    def is_over(self) -> bool:
        return any(content["execution_state"] == "idle" for content in self.of("status"))

    @property
    def status(self) -> str:
        return str(self.reply["status"])

    def stream(self, name: str) -> str:
        return "".join(content["text"] for content in self.of("stream") if content["name"] == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    def shown(self, kind: str = "display_data", mime: str = "text/plain") -> list[str]:
        return [content["data"][mime] for content in self.of(kind)]

    @property
    def text(self) -> str:
        """Return all that was displayed, as plain text."""
        return "\n".join(self.shown())

    @property
    def traceback(self) -> str:
        text = "\n".join(line for content in self.of("error")[:1] for line in content["traceback"])
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


class FrontEnd:
    """A kernel, and what it publishes. Without a nursery, the kernel is a program of its own."""

    def __init__(
        self, environment: Mapping[str, str], nursery: Nursery | None, flags: Sequence[str] = ()
    ) -> None:
        # Another process could take a free port before the kernel binds it.
        self._folder = tempfile.mkdtemp(prefix="k-")
        sockets = f"{self._folder}/k"
        self.manager: Any = (
            fresh_kernel(sockets, *flags) if nursery is None else BornKernel(nursery, sockets)
        )
        self.manager.start_kernel(env={**os.environ, **environment})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=CELL_SECONDS)
        except BaseException:
            self.kill()
            raise

    def read(self, id: str, cell: Cell) -> None:
        """Read one message; it is the cell's if it has this id."""
        message = self.client.get_iopub_msg(timeout=CELL_SECONDS)
        if message["parent_header"].get("msg_id") == id:
            cell.messages.append((message["msg_type"], message["content"]))

    def shows(self, id: str) -> Cell:
        """Wait for a cell's end; return all that it has shown."""
        cell = Cell()
        while not cell.is_over:
            self.read(id, cell)
        return cell

    def kill(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self._folder, ignore_errors=True)  # a test may have killed it


def fresh_kernel(sockets: str, *flags: str) -> KernelManager:
    manager = KernelManager(transport="ipc", ip=sockets)
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[0:1] = [sys.executable, *flags]
    return manager


class Notebook(FrontEnd):
    """A kernel and what its cells print."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        nursery: Nursery | None = None,
    ) -> None:
        super().__init__(environment, nursery)
        self.name = name

    def start(self, code: str) -> str:
        """Run a cell without waiting for its end; returns its id."""
        return str(self.client.execute(code))

    def end(self, id: str) -> str:
        """Wait for a cell's end; return its output. Raises AssertionError with its traceback."""
        cell = self.shows(id)
        for failed in cell.of("error"):
            raise AssertionError("\n".join([failed["ename"], *failed["traceback"]]))
        return cell.stdout

    def run(self, code: str) -> str:
        return self.end(self.start(code))

    def share(self) -> None:
        self.run("%load_ext jupyter_gpushare")
        self.run(f"%gpushare on --device host --name {self.name}")

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()


@pytest.fixture
def notebook(settings: Settings, nursery: Nursery) -> Iterator[Notebooks]:
    """Opens notebooks, which share unless they are told not to. `imports`: the kernel is a program
    of its own, which imports PyTorch when a cell does."""
    with maker(Notebook, Notebook.kill) as made:

        def notebook(name: str = "notebook", share: bool = True, imports: bool = False) -> Notebook:
            opened = made(name, nursery=None if imports else nursery)
            if share:
                opened.share()
            return opened

        yield notebook


@pytest.fixture
def of_earlier_tests() -> set[int]:
    """Return the numbers of the files of lanes that earlier tests have left open in this
    process."""
    gc.collect()  # closed sessions are in cycles
    return {*memory_of_lanes(os.getpid())}


@pytest.fixture
def scribbler(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, of_earlier_tests: set[int]
) -> Iterator[Scribbler]:
    """It asks for each turn at once, and turns end at once."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "1e-6")
    scribbler = Scribbler(settings)
    yield scribbler
    scribbler.close()


@pytest.fixture
def ours(scribbler: Scribbler, notebook: Notebooks) -> Notebook:
    """A notebook whose demand is known and whose turn is over at each boundary."""
    ours = notebook("ours")
    ours.run(LARGE + MODEL + CHANGE_OVER)
    ours.run(BODIES["zero_grad_first"])
    assert scribbler.overwrites > 0
    return ours


@pytest.fixture
def lanes(look: Look) -> Callable[[], list[LaneView]]:
    """Return the lanes, as a viewer sees them now."""
    return lambda: look().devices[0].lanes


@pytest.fixture
def lane_bytes(lanes: Callable[[], list[LaneView]]) -> Sizes:
    """Return what the lanes may take of memory, in whole pages."""
    return lambda: sorted(-lane.bytes // mmap.PAGESIZE * -mmap.PAGESIZE for lane in lanes())


@pytest.fixture
def in_memory(look: Look, of_earlier_tests: set[int]) -> Sizes:
    """Return the memory of each lane that a process has: the broker, this process, or one that has
    ever been seen as a session."""
    pids = {os.getpid()}

    def in_memory() -> list[int]:
        snapshot = look()
        pids.add(snapshot.broker.pid)
        pids.update(view.pid for view in snapshot.devices[0].sessions)
        found = {number: size for pid in pids for number, size in memory_of_lanes(pid).items()}
        return sorted(
            size for number, size in found.items() if size and number not in of_earlier_tests
        )

    return in_memory


@pytest.fixture
def memory_follows(in_memory: Sizes, lane_bytes: Sizes, look: Look) -> Callable[[], None]:
    """Wait until the lanes have the memory that they may take, no more and no less."""

    def memory_follows() -> None:
        if not comes(lambda: in_memory() == lane_bytes()):
            raise AssertionError(f"{in_memory()} are in memory, of {lane_bytes()}: {look()}")

    return memory_follows


def memory_of_lanes(pid: int) -> dict[int, int]:
    """Return the bytes of each file of a lane that a process has open, by its number."""
    found = open_memory(pid, "gpushare-lane")
    return {status.st_ino: status.st_blocks * 512 for _, status in found}


def until_answered(is_so: Callable[[], object]) -> None:
    """Wait until it is so; a broker that is just coming answers nothing."""

    def is_said() -> bool:
        with contextlib.suppress(GpuShareError):
            return bool(is_so())
        return False

    until(is_said)


def last_json(printed: str) -> Any:
    return json.loads(printed.strip().splitlines()[-1])


def used_in_lane(notebook: Notebook) -> list[int]:
    """Return bytes that each iteration since the last call had in the lane, of those that
    had any."""
    return [footprint for footprint in last_json(notebook.run(TELL)) if footprint]


def results_alone(programs: dict[str, str]) -> Any:
    """Return the last line of each program in a plain interpreter, without sharing."""
    command, given = [sys.executable, "-c", RUN_ALL], json.dumps(programs)
    run = subprocess.run(command, input=given, capture_output=True, text=True, cwd="/")
    assert run.returncode == 0, run.stderr
    return last_json(run.stdout)
