"""A lane that two notebooks use at once, as the panel draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

from .conftest import private_broker

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
MIB, GIB = 1 << 20, 1 << 30
CNN = m.Curve(0.12, GIB, (5, 20, 45, 70, 85, 95, 100, 100, 96, 90, 84, 70, 55, 40, 20, 5))
GPT = m.Curve(0.2, GIB, (4, 25, 40, 55, 70, 85, 95, 100, 88, 76, 64, 50, 38, 26, 15, 5))


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Two sessions may use one lane at once, and there is room for 1.25 of their iterations."""
    own = {"share_lanes": True, "running_lanes": 2, "host_capacity_bytes": 3 * GIB + GIB // 4}
    with private_broker(**own) as settings:
        yield settings


@pytest.fixture
def joins(settings: Settings, ends_broker: None) -> Iterator[Callable[[str], Client]]:
    """Open a session that can share a lane, and asks for its turn at once."""
    clients: list[Client] = []

    def joins(name: str) -> Client:
        clients.append(client := Client.connect(settings, "tests"))
        demand = m.Demand(GIB, GIB, measured=True)
        client.ask(m.Open(f"s{len(clients)}", name, "host", demand=demand, shares=True))
        client.send(m.Request(1))
        return client

    yield joins
    for client in clients:
        client.close()


@pytest.mark.system
def test_both_iterations_are_drawn_from_the_two_ends_of_their_lane(visit: Any, joins: Any) -> None:
    first, second = joins("cnn.ipynb"), joins("gpt.ipynb")
    lab = visit("empty.ipynb")
    lane = lab.panel.locator(".jp-GpuShare-coLane")
    expect(lane).to_have_text(
        "cnn (from below) and gpt (from above) compute at once in 1.3 GiB, and one waits where both"
        " need more. In lanes of their own they would take 2.0 GiB."
    )
    expect(lane.locator("svg")).to_have_count(0)  # the curves are unknown
    for client, curve in ((first, CNN), (second, GPT)):
        client.send(m.Report(100, m.Demand(GIB, GIB, measured=True), curve=curve))
    picture = lane.get_by_role("img", name="cnn.ipynb from below, gpt.ipynb from above")
    expect(picture).to_be_visible()
    expect(lab.row("computes beside gpt.ipynb")).to_contain_text("cnn.ipynb")
    lab.wait_for_timeline()
    lab.picture("co_lane")
