"""The metrics that Prometheus scrapes."""

from __future__ import annotations

import os
import pwd
import signal
import time
from typing import Any

import pytest
from jupyter_gpushare_server import _unload_jupyter_server_extension
from jupyter_gpushare_server.events.attendance import EMPTY
from jupyter_gpushare_server.feed import LOOKING
from jupyter_gpushare_server.metrics import SnapshotCollector
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpushare.broker.accounting.ledger import Counted, UsageDatabase
from jupyter_gpushare.settings import Settings, accounts_path
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand, SqueezeOption
from jupyter_gpushare.wire.snapshot import RestingView, Snapshot

from ...snapshots import IDLE, snapshot_of

Samples = dict[tuple[str, str], float]


@pytest.fixture
def scrape(jp_fetch: Any, extension: Any) -> Any:
    """Scrape metrics: `await scrape()` has our samples, by name and values of labels."""

    async def scrape() -> Samples:
        return samples((await jp_fetch("metrics")).body)

    return scrape


def samples(text: bytes) -> Samples:
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name.startswith("gpushare_")
    }


async def test_the_snapshot_is_at_metrics(scrape: Any, join: Any, shown: Any) -> None:
    alice = await join("alice", demand=Demand(3000, 500, True))
    await join("bob", demand=Demand(1000, 2000, True))
    alice.send(m.Request(1))
    state = await shown(
        lambda state: any(view.state == "running" for view in state.devices[0].sessions)
    )
    found = await scrape()
    device = state.devices[0]
    assert found["gpushare_broker_up", ""] == 1
    assert found["gpushare_broker_recovering", ""] == 0
    assert found["gpushare_capacity_bytes", "host"] == device.capacity_bytes
    assert found["gpushare_persistent_bytes", "host"] == device.persistent_bytes
    assert found["gpushare_free_bytes", "host"] == device.free_bytes
    assert found["gpushare_unmanaged_bytes", "host"] == device.unmanaged_bytes == 0
    assert found["gpushare_lane_bytes", "host"] == sum(lane.bytes for lane in device.lanes)
    assert found["gpushare_sessions", "host/running"] == 1
    assert found["gpushare_sessions", "host/idle"] == 1
    assert found["gpushare_lanes", "host"] == len(device.lanes)
    assert found["gpushare_running_lanes", "host"] == 1
    for none in ("waiting", "shared_lanes", "resting", "squeezed"):
        assert found[f"gpushare_{none}", "host"] == 0
    (user,) = {view.user for view in device.sessions}
    assert found["gpushare_user_sessions", f"host/{user}"] == 2
    assert found["gpushare_user_persistent_bytes", f"host/{user}"] == 4000
    assert found["gpushare_user_waiting", f"host/{user}"] == 0


async def test_a_notebook_that_is_squeezed_is_counted(scrape: Any, join: Any, shown: Any) -> None:
    options = SqueezeOption(1 << 50, 1.0), SqueezeOption(1000, 1.2)  # more than any host has
    await join("alice", demand=Demand(3000, 1 << 50, True, options))
    await shown(lambda state: bool(state.devices[0].sessions))
    assert (await scrape())["gpushare_squeezed", "host"] == 1


async def test_a_wait_grows_between_two_snapshots(join: Any, shown: Any, extension: Any) -> None:
    demand = Demand(1000, 500, True)
    for name in ("alice", "bob"):
        (await join(name, demand=demand)).send(m.Request(1))
    await shown(lambda state: any(view.state == "waiting" for view in state.devices[0].sessions))
    extension.feed._came -= 100.0  # as if the snapshot had come that long ago
    found = samples(generate_latest())  # before the next one can come
    assert found["gpushare_longest_wait_seconds", "host"] >= 100.0


def used(*seconds: float) -> Snapshot:
    return snapshot_of(*(replace(IDLE, device_seconds=one) for one in seconds))


def rested() -> Snapshot:
    (device,) = used().devices
    view = RestingView(IDLE.id, IDLE.name, IDLE.user, IDLE.pid, 0, 1.0, "release")
    return replace(used(), devices=[replace(device, resting=[view])])


@pytest.mark.parametrize("away", [used(), rested()], ids=["lost", "released"])
@pytest.mark.parametrize("credited", [0.0, 490.0, 500.0])
def test_used_time_is_counted_once_whatever_a_session_comes_back_with(
    away: Snapshot, credited: float
) -> None:
    registry, attendance = CollectorRegistry(), EMPTY
    collector = SnapshotCollector(lambda: LOOKING, lambda: None)
    registry.register(collector)
    totals = []
    for seen in (used(480.0), used(500.0), away, used(credited), used(credited + 20.0)):
        attendance = attendance.after(seen)
        collector.observe(attendance)
        totals += [samples(generate_latest(registry))["gpushare_device_seconds_total", IDLE.user]]
    assert totals == [480.0, 500.0, 500.0, 500.0, 520.0]


@pytest.fixture
def counted(settings: Settings) -> None:
    """Let the previous broker have counted this much: of the past that a session reports only the
    counted part is valid."""
    ledger = UsageDatabase(accounts_path(settings))
    owner = pwd.getpwuid(os.getuid()).pw_name
    ledger.add({}, {"alice": Counted(owner, 12.5, 3.0, time.time())})
    ledger.close()


@pytest.mark.system
async def test_used_time_never_falls_when_a_notebook_ends(
    counted: None, scrape: Any, join: Any, shown: Any
) -> None:
    alice = await join("alice", device_seconds=12.5, waited_seconds=3.0)
    (user,) = [view.user for view in (await shown(lambda state: True)).devices[0].sessions]
    assert (await scrape())["gpushare_device_seconds_total", user] == 12.5
    alice.close()
    await shown(lambda state: not state.devices[0].sessions)
    assert (await scrape())["gpushare_device_seconds_total", user] == 12.5
    assert (await scrape())["gpushare_waited_seconds_total", user] == 3.0


@pytest.mark.system
async def test_a_released_session_is_counted_once_when_it_comes_back(
    counted: None, scrape: Any, join: Any, shown: Any
) -> None:
    alice = await join("alice", device_seconds=12.5, busy=False)
    (user,) = [view.user for view in (await shown(lambda state: True)).devices[0].sessions]
    alice.send(m.Rests(0))
    await shown(lambda state: state.devices[0].resting)
    assert (await scrape())["gpushare_device_seconds_total", user] == 12.5
    assert (await scrape())["gpushare_resting", "host"] == 1
    alice.send(m.Open("alice", "alice", "host", device_seconds=12.5))
    await shown(lambda state: state.devices[0].sessions)
    assert (await scrape())["gpushare_device_seconds_total", user] == 12.5


async def test_a_broker_that_is_away_is_down_and_has_no_memory(
    only_looks: None, scrape: Any
) -> None:
    found = await scrape()
    assert found["gpushare_broker_up", ""] == 0
    assert ("gpushare_capacity_bytes", "host") not in found


@pytest.fixture
def recovers_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_RECOVERY_SECONDS", "3600")


@pytest.mark.system
async def test_a_restarted_broker_recovers(
    recovers_for_long: None, scrape: Any, join: Any, shown: Any
) -> None:
    await join("alice")
    before = await shown(lambda state: bool(state.devices[0].sessions))
    os.kill(before.broker.pid, signal.SIGKILL)
    await shown(lambda state: isinstance(state, Snapshot) and state.broker.recovering)
    found = await scrape()
    assert found["gpushare_broker_up", ""] == found["gpushare_broker_recovering", ""] == 1


async def test_an_unloaded_extension_leaves_no_metrics(scrape: Any, jp_serverapp: Any) -> None:
    await _unload_jupyter_server_extension(jp_serverapp)
    assert await scrape() == {}
