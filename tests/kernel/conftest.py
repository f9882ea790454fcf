"""Real kernels, each with a front end that reads what it publishes, and a neighbour."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import KernelManager

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import Snapshot

from ..whole.conftest import BornKernel

if TYPE_CHECKING:
    from ..faults.scene import Nursery

SECONDS = 120
TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(width=4):
    optimizer.zero_grad()
    model(torch.ones(8, width)).sum().backward()
    optimizer.step()
"""


class Cell:
    """The result of one execution: its outputs in order, and the reply."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] = {}
        self.messages: list[tuple[str, dict[str, Any]]] = []

    @property
    def status(self) -> str:
        return str(self.reply["status"])

    def stream(self, name: str) -> str:
        return "".join(
            content["text"]
            for kind, content in self.messages
            if kind == "stream" and content["name"] == name
        )

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    def shown(self, kind: str = "display_data", mime: str = "text/plain") -> list[str]:
        return [content["data"][mime] for found, content in self.messages if found == kind]

    @property
    def text(self) -> str:
        """Return all that was displayed, as plain text."""
        return "\n".join(self.shown())

    @property
    def traceback(self) -> str:
        found = [content for kind, content in self.messages if kind == "error"]
        text = "\n".join(found[0]["traceback"]) if found else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Notebook:
    """A kernel and its front end. Without a nursery, the kernel is a program of its own."""

    def __init__(
        self, environment: dict[str, str], flags: Sequence[str], nursery: Nursery | None
    ) -> None:
        self.manager: Any = fresh_kernel(*flags) if nursery is None else BornKernel(nursery)
        self.manager.start_kernel(env={**os.environ, **environment})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)
        self._cell = Cell()

    def run(self, code: str) -> Cell:
        self.begin(code)
        return self.finish()

    def begin(self, code: str) -> str:
        self._cell, self._id = Cell(), self.client.execute(code)
        return self._id

    def until(self, wanted: Callable[[Cell], bool]) -> Cell:
        """Read the running cell's outputs until one makes `wanted` true."""
        while not wanted(self._cell):
            self._read()
        return self._cell

    def finish(self) -> Cell:
        """Read until the kernel is idle, then the reply."""
        while self._read() != ("status", "idle"):
            pass
        reply = self.client.get_shell_msg(timeout=SECONDS)
        while reply["parent_header"]["msg_id"] != self._id:
            reply = self.client.get_shell_msg(timeout=SECONDS)
        self._cell.reply = reply["content"]
        return self._cell

    def _read(self) -> tuple[str, str]:
        message = self.client.get_iopub_msg(timeout=SECONDS)
        if message["parent_header"].get("msg_id") != self._id:
            return "", ""
        self._cell.messages.append((message["msg_type"], message["content"]))
        return message["msg_type"], message["content"].get("execution_state", "")

    def complete(self, code: str) -> list[str]:
        reply = self.client.complete(code, reply=True, timeout=SECONDS)["content"]
        return [code[: reply["cursor_start"]] + match for match in reply["matches"]]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def fresh_kernel(*flags: str) -> KernelManager:
    manager = KernelManager()
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[0:1] = [sys.executable, *flags]
    return manager


class Neighbour:
    """Another session of the same user, made of bare messages."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.client = Client.connect(settings, "tests")
        measured = m.Demand(0, 0, measured=True)
        self.client.ask(m.Open("neighbour", name, "host", demand=measured))
        self.turn = 0

    def take(self) -> None:
        self.turn += 1
        self.client.send(m.Request(self.turn))
        self._await_grant()

    def take_again(self) -> None:
        """Give the turn and be next: in one piece, so that no session comes between the two."""
        self.turn += 1
        self.client.send(m.Finish(self.turn - 1), m.Request(self.turn))
        self._await_grant()

    def _await_grant(self) -> None:
        while not isinstance(self.client.receive(), m.Grant):
            pass

    def give(self) -> None:
        self.client.send(m.Finish(self.turn))


@pytest.fixture(scope="session")
def plain_nursery() -> Iterator[Nursery]:
    """Forks processes in which a kernel is imported, and neither PyTorch nor anything of ours."""
    from ..faults.scene import PLAIN_MODULES, Nursery

    nursery = Nursery(PLAIN_MODULES)
    yield nursery
    nursery.close()


@pytest.fixture
def start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_nursery: Nursery
) -> Iterator[Callable[..., Notebook]]:
    """Start kernels; keyword arguments are environment variables. One that gets flags of Python, or
    no nursery, is a program of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    started: list[Notebook] = []

    def start(*flags: str, nursery: Nursery | None = plain_nursery, **environment: str) -> Notebook:
        started.append(Notebook(environment, flags, None if flags else nursery))
        return started[-1]

    yield start
    for notebook in started:
        notebook.close()


def load(notebook: Notebook) -> Notebook:
    assert notebook.run("%load_ext jupyter_gpushare").status == "ok"
    return notebook


@pytest.fixture
def notebook(start: Callable[..., Notebook]) -> Notebook:
    """A kernel called train.ipynb with the extension loaded and sharing off."""
    return load(start(JPY_SESSION_NAME="lessons/train.ipynb"))


@pytest.fixture
def fresh(start: Callable[..., Notebook]) -> Notebook:
    """The same, as a program of its own."""
    return load(start(nursery=None, JPY_SESSION_NAME="lessons/train.ipynb"))


@pytest.fixture
def with_torch(start: Callable[..., Notebook], nursery: Nursery) -> Notebook:
    """The same, where PyTorch is imported already, which takes longer than most tests."""
    return load(start(nursery=nursery, JPY_SESSION_NAME="lessons/train.ipynb"))


@pytest.fixture
def trainer(with_torch: Notebook) -> Notebook:
    """The same with a model to train, and sharing on."""
    with_torch.run("%gpushare on")
    assert with_torch.run(TRAIN).status == "ok"
    return with_torch


@pytest.fixture
def neighbour(settings: Settings) -> Iterator[Neighbour]:
    neighbour = Neighbour(settings, "cnn.ipynb")
    yield neighbour
    neighbour.client.close()


@pytest.fixture
def wait_until(
    settings: Settings,
) -> Iterator[Callable[[Callable[[dict[str, str]], bool]], dict[str, str]]]:
    """Wait until `wanted` is true of the states of the notebooks by name, and return them."""
    client = Client.connect(settings, "tests")

    def wait_until(wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        return next(found for found in map(states, client.watch(0.05)) if wanted(found))

    yield wait_until
    client.close()


def states(snapshot: Snapshot) -> dict[str, str]:
    return {view.name: view.state for device in snapshot.devices for view in device.sessions}
