"""Idle notebooks give their memory to others that need it, and have it again for their
next cell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_gpushare_kernel.cells import AWAY

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ....conftest import Sessions
from ....polling import next_of
from ..conftest import Notebook, Notebooks, last_json, results_alone

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("pages")]

BUILD = Path(__file__).parents[4] / "build"
CAPACITY = 100 << 20  # one of the notebooks fits, two do not
MODEL = """
import json, torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])  # 32 MiB, as much again
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)  # in gradients
x, losses = torch.randn(16, 1024), []
"""
TRAIN = """
for _ in range(5):
    optimizer.zero_grad(set_to_none=False)
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
TELL = """
print(json.dumps([losses, [parameter.double().sum().item() for parameter in net.parameters()]]))
"""
ADDRESSES = "print(json.dumps([parameter.data_ptr() for parameter in net.parameters()]))"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for paging out, on a device that is small. It is on a disk, as /tmp need not
    be."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, ignore_cleanup_errors=True) as directory:
        monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(CAPACITY))
        monkeypatch.setenv("JUPYTER_GPUSHARE_PAGE_DIRECTORY", directory)
        yield Path(directory)


@pytest.fixture(scope="module")
def alone() -> Any:
    return results_alone({"alone": MODEL + TRAIN + TRAIN + TELL})["alone"]


def trained(notebook: Notebooks, name: str = "first") -> Notebook:
    (opened := notebook(name)).run(MODEL + TRAIN)
    return opened


def resident_from_outside(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_idle_notebook_is_evicted_and_continues_as_if_nothing_had_been(
    notebook: Notebooks, sessions: Sessions, alone: Any
) -> None:
    first, second = trained(notebook), notebook("second")
    addresses = last_json(first.run(ADDRESSES))
    before = resident_from_outside(sessions()["first"].pid)
    second.run(MODEL + TRAIN)
    view = sessions()["first"]
    assert view.state == "paged_out"
    assert view.paged_out_bytes > 60 << 20
    assert "second" in view.reason
    assert before - resident_from_outside(view.pid) > 50 << 20
    assert last_json(first.run(TRAIN + TELL)) == alone
    assert last_json(first.run(ADDRESSES)) == addresses
    assert sessions()["second"].state == "paged_out"
    assert last_json(second.run(TRAIN + TELL)) == alone


def test_where_nothing_can_be_written_nothing_is_lost(
    pages: Path, notebook: Notebooks, sessions: Sessions, alone: Any
) -> None:
    """The second waits for memory; the first stays, and its next cells run as before."""
    pages.rmdir()
    first, second = trained(notebook), notebook("second")
    second.run(MODEL)
    waiting = second.start(TRAIN + TELL)
    assert last_json(first.run(TRAIN + TELL)) == alone
    assert sessions()["first"].paged_out_bytes == 0
    first.run("%gpushare off")
    second.end(waiting)


@pytest.fixture
def full_disk(pages: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB, which has room for half of a notebook's memory."""
    image = tmp_path / "disk"
    image.touch()
    os.truncate(image, 32 << 20)
    mount = ["mount", "-o", "loop", str(image), str(pages)]
    if os.getuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root can mount a small disk, and mkfs.ext4 makes one")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield pages
    subprocess.run(["umount", "--lazy", str(pages)], check=True)


def test_a_waiting_notebook_is_told_which_disk_has_no_room_for_the_memory_of_another(
    full_disk: Path, notebook: Notebooks, sessions: Sessions, alone: Any
) -> None:
    first, second = trained(notebook), notebook("second")
    second.run(MODEL)
    waiting = second.start(TRAIN + TELL)
    while "could not be paged out" not in (reason := sessions()["second"].reason):
        time.sleep(0.05)
    assert reason.startswith("waits for memory: needs ")
    assert re.search(
        rf"; first could not be paged out: \d+ MiB do not fit into {re.escape(str(full_disk))}, "
        r"which has \d+ MiB free: No space left on device$",
        reason,
    )
    assert last_json(first.run(TRAIN + TELL)) == alone
    first.run("%gpushare off")
    second.end(waiting)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_notebook_that_is_out_survives_a_broker_that_ends(
    end: signal.Signals, notebook: Notebooks, sessions: Sessions, broker_pid: int, alone: Any
) -> None:
    first, second = trained(notebook), trained(notebook, "second")
    assert sessions()["first"].state == "paged_out"
    os.kill(broker_pid, end)
    assert last_json(first.run(TRAIN + TELL)) == alone
    assert last_json(second.run(TRAIN + TELL)) == alone


def test_a_notebook_that_waits_in_its_cell_is_evicted_and_continues_as_if_nothing_had_been(
    settings: Settings,
    notebook: Notebooks,
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    alone: Any,
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_PAGE_WAITING", "true")
    monkeypatch.setenv("JUPYTER_GPUSHARE_AGING_SECONDS", "0.1")
    first = trained(notebook)
    before = resident_from_outside(sessions()["first"].pid)
    with ExitStack() as scope:
        holder, promised = (
            scope.enter_context(asks_for_turn(settings, name, 1, priority))
            for priority, name in enumerate(("holder", "promised"))
        )
        waiting = first.start(TRAIN + TELL)
        while sessions()["first"].state != "waiting":
            assert first.manager.is_alive()
        large = scope.enter_context(asks_for_turn(settings, "large", 60, 2))
        while (view := sessions()["first"]).state != "paged_out":
            assert first.manager.is_alive()
        assert before - resident_from_outside(view.pid) > 50 << 20
        assert "waits for room to come back" in view.reason
        holder.send(m.Finish(1))
        promised.send(m.Finish(1))
        next_of(large, m.Grant)
    assert last_json(first.end(waiting)) == alone


def test_an_interrupt_of_a_cell_that_waits_for_room_tells_what_follows(
    settings: Settings, notebook: Notebooks, sessions: Sessions
) -> None:
    first = trained(notebook)
    with asks_for_turn(settings, "large", 60, 0) as large:
        next_of(large, m.Grant)
        cell = first.start("print('ran')")
        while "waits for room to come back" not in sessions()["first"].reason:
            assert first.manager.is_alive()
        first.interrupt()
        shown = first.shows(cell)
        assert (shown.stdout, shown.stderr) == ("ran\n", f"{AWAY}\n")


@contextmanager
def asks_for_turn(settings: Settings, name: str, size: int, priority: int) -> Iterator[Client]:
    """A session of MiB that gives nothing back by itself."""
    with Client.connect(settings, name) as client:
        demand = Demand(size << 20, 1 << 20, measured=True)
        client.ask(m.Open(name, name, "host", demand=demand, priority=priority))
        client.send(m.Request(1))
        yield client
