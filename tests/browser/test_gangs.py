"""A notebook that has several GPUs at once, as the panel shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

if TYPE_CHECKING:
    from ..conftest import FakeGpus
    from .conftest import Server

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
GIB = 1 << 30
PARALLEL, SINGLE = "parallel.ipynb", "single.ipynb"


@pytest.fixture(autouse=True)
def three_gpus(gpus: FakeGpus) -> None:
    """Set it before any process starts that looks for GPUs."""
    gpus.say(*(f"gpu GPU-{name} {16 * GIB} 0 NVIDIA L4" for name in "abc"))


@pytest.fixture
def server(own_server: Server) -> Server:
    """One that starts when the GPUs are there."""
    return own_server


@pytest.fixture
def joins(settings: Settings, ends_broker: None) -> Iterator[Callable[..., None]]:
    """Open a session of other programs that asks for a turn at once."""
    clients: list[Client] = []

    def joins(name: str, device: str, devices: int = 1) -> None:
        clients.append(client := Client.connect(settings, "tests"))
        demand = m.Demand(2 * GIB, 3 * GIB, measured=True)
        client.ask(m.Open(f"s{len(clients)}", name, device, demand=demand, devices=devices))
        client.send(m.Request(1))

    yield joins
    for client in clients:
        client.close()


@pytest.mark.system
def test_a_gang_is_shown_with_all_the_gpus_that_it_has(visit: Any, joins: Any) -> None:
    joins(PARALLEL, "auto", 2)
    joins(SINGLE, "cuda:0")
    lab = visit("empty.ipynb")
    gang = lab.panel.locator("tbody.jp-GpuShare-notebook.jp-mod-running")
    gang.first.locator("button.jp-GpuShare-name").click()
    for device in ("cuda:0", "cuda:1"):
        there = lab.panel.get_by_role("region", name=f"Device {device}")
        expect(there).to_contain_text("cuda:0, cuda:1 at once")
    expect(lab.row(SINGLE)).to_contain_text(f"waits for {PARALLEL}")
    lab.wait_for_timeline()
    lab.picture("gang")
