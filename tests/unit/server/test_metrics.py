"""The metrics that Prometheus scrapes."""

from __future__ import annotations

import os
import pwd
import signal
import time
from typing import Any

import pytest
from jupyter_gpushare_server import _unload_jupyter_server_extension
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpushare.broker.accounting.ledger import Counted, UsageDatabase
from jupyter_gpushare.settings import Settings, accounts_path
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.snapshot import Snapshot

Samples = dict[tuple[str, str], float]


@pytest.fixture
def scrape(jp_fetch: Any, extension: Any) -> Any:
    """Scrape: `await scrape()` is our samples, by name and the labels' values."""

    async def scrape() -> Samples:
        text = (await jp_fetch("metrics")).body.decode()
        return {
            (sample.name, "/".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("gpushare_")
        }

    return scrape


async def test_the_snapshot_is_at_metrics(scrape: Any, join: Any, shown: Any) -> None:
    alice = await join("alice", demand=m.Demand(3000, 500, True))
    await join("bob", demand=m.Demand(1000, 2000, True))
    alice.send(m.Request(1))
    state = await shown(
        lambda state: any(view.state == "running" for view in state.devices[0].sessions)
    )
    samples = await scrape()
    device = state.devices[0]
    assert samples["gpushare_broker_up", ""] == 1
    assert samples["gpushare_broker_recovering", ""] == 0
    assert samples["gpushare_capacity_bytes", "host"] == device.capacity_bytes
    assert samples["gpushare_persistent_bytes", "host"] == device.persistent_bytes
    assert samples["gpushare_free_bytes", "host"] == device.free_bytes
    assert samples["gpushare_unmanaged_bytes", "host"] == device.unmanaged_bytes == 0
    assert samples["gpushare_lane_bytes", "host"] == sum(lane.bytes for lane in device.lanes)
    assert samples["gpushare_sessions", "host/running"] == 1
    assert samples["gpushare_sessions", "host/idle"] == 1
    assert samples["gpushare_lanes", "host"] == len(device.lanes)
    assert samples["gpushare_running_lanes", "host"] == 1
    for none in ("waiting", "shared_lanes", "resting", "squeezed"):
        assert samples[f"gpushare_{none}", "host"] == 0
    (user,) = {view.user for view in device.sessions}
    assert samples["gpushare_user_sessions", f"host/{user}"] == 2
    assert samples["gpushare_user_persistent_bytes", f"host/{user}"] == 4000
    assert samples["gpushare_user_waiting", f"host/{user}"] == 0


async def test_a_notebook_that_is_squeezed_is_counted(scrape: Any, join: Any, shown: Any) -> None:
    options = m.SqueezeOption(1 << 50, 1.0), m.SqueezeOption(1000, 1.2)  # more than any host has
    await join("alice", demand=m.Demand(3000, 1 << 50, True, options))
    await shown(lambda state: bool(state.devices[0].sessions))
    assert (await scrape())["gpushare_squeezed", "host"] == 1


@pytest.fixture
def counted(settings: Settings) -> None:
    """The broker before had counted: the past that a session reports counts as far as it was
    counted."""
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
    samples = await scrape()
    assert samples["gpushare_broker_up", ""] == 0
    assert ("gpushare_capacity_bytes", "host") not in samples


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
    samples = await scrape()
    assert samples["gpushare_broker_up", ""] == samples["gpushare_broker_recovering", ""] == 1


async def test_an_unloaded_extension_leaves_no_metrics(scrape: Any, jp_serverapp: Any) -> None:
    await _unload_jupyter_server_extension(jp_serverapp)
    assert await scrape() == {}
