"""Real kernels, each with a front end that reads what it publishes, and a neighbour."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.snapshot import Snapshot

from ...makers import maker
from ...polling import next_of
from ..faults.scene import PLAIN_MODULES, Nursery
from ..whole.conftest import CELL_SECONDS, Cell, FrontEnd

TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(width=4):
    optimizer.zero_grad()
    model(torch.ones(8, width)).sum().backward()
    optimizer.step()
"""


class Notebook(FrontEnd):
    """A kernel and its front end."""

    def __init__(
        self, environment: dict[str, str], flags: Sequence[str], nursery: Nursery | None
    ) -> None:
        super().__init__(environment, nursery, flags)
        self._cell = Cell()

    def run(self, code: str) -> Cell:
        self.begin(code)
        return self.finish()

    def begin(self, code: str) -> str:
        self._cell, self._id = Cell(), str(self.client.execute(code))
        return self._id

    def until(self, wanted: Callable[[Cell], bool]) -> Cell:
        """Read the running cell's outputs until one makes `wanted` true."""
        while not wanted(self._cell):
            self.read(self._id, self._cell)
        return self._cell

    def finish(self) -> Cell:
        """Read until the kernel is idle, then the reply."""
        self.until(lambda cell: cell.is_over)
        reply = self.client.get_shell_msg(timeout=CELL_SECONDS)
        while reply["parent_header"]["msg_id"] != self._id:
            reply = self.client.get_shell_msg(timeout=CELL_SECONDS)
        self._cell.reply = reply["content"]
        return self._cell

    def interrupt(self) -> Cell:
        self.manager.interrupt_kernel()
        return self.finish()

    def send(self, kind: str, **content: object) -> str:
        """Send another message than a cell, such as one to a widget; return its id."""
        message = self.client.session.msg(kind, content)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def complete(self, code: str) -> list[str]:
        reply = self.client.complete(code, reply=True, timeout=CELL_SECONDS)["content"]
        return [code[: reply["cursor_start"]] + match for match in reply["matches"]]


class Neighbour:
    """Another session of the same user, made of bare messages."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.client = Client.connect(settings, "tests")
        measured = Demand(0, 0, measured=True)
        self.client.ask(m.Open("neighbour", name, "host", demand=measured))
        self.turn = 0

    def take(self) -> None:
        self.turn += 1
        self.client.send(m.Request(self.turn))
        next_of(self.client, m.Grant)

    def take_again(self) -> None:
        """Give the turn and be next: in one piece, so that no session comes between the two."""
        self.turn += 1
        self.client.send(m.Finish(self.turn - 1), m.Request(self.turn))
        next_of(self.client, m.Grant)

    def give(self) -> None:
        self.client.send(m.Finish(self.turn))


@pytest.fixture(scope="session")
def plain_nursery() -> Iterator[Nursery]:
    """Forks processes in which a kernel is imported, and neither PyTorch nor anything of ours."""
    nursery = Nursery(PLAIN_MODULES)
    yield nursery
    nursery.close()


Start = Callable[..., Notebook]


@pytest.fixture
def start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_nursery: Nursery
) -> Iterator[Start]:
    """Start kernels; keyword arguments are environment variables. One that gets flags of Python, or
    no nursery, is a program of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def start(*flags: str, nursery: Nursery | None = plain_nursery, **environment: str) -> Notebook:
        return Notebook(environment, flags, None if flags else nursery)

    with maker(start, Notebook.kill) as made:
        yield made


Configure = Callable[..., None]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Write the configuration of the kernels that start."""

    def configure(**sections: object) -> None:
        profile = tmp_path / "ipython" / "profile_default"
        profile.mkdir(parents=True)
        (profile / "ipython_kernel_config.json").write_text(json.dumps(sections))

    return configure


def load(notebook: Notebook) -> Notebook:
    assert notebook.run("%load_ext jupyter_gpushare").status == "ok"
    return notebook


@pytest.fixture
def notebook(start: Start) -> Notebook:
    """A kernel called train.ipynb with the extension loaded and sharing off."""
    return load(start(JPY_SESSION_NAME="lessons/train.ipynb"))


@pytest.fixture
def with_torch(start: Start, nursery: Nursery) -> Notebook:
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


WaitUntil = Callable[[Callable[[dict[str, str]], bool]], dict[str, str]]


@pytest.fixture
def wait_until(settings: Settings) -> Iterator[WaitUntil]:
    """Wait until `wanted` is true of the states of the notebooks by name, and return them."""
    client = Client.connect(settings, "tests")

    def wait_until(wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        return next(found for found in map(states, client.watch(0.05)) if wanted(found))

    yield wait_until
    client.close()


def states(snapshot: Snapshot) -> dict[str, str]:
    return {view.name: view.state for device in snapshot.devices for view in device.sessions}
