"""State, sessions and policy over REST."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.snapshot import Snapshot

from ....polling import next_of


async def test_the_state_is_the_snapshot_of_the_broker(api: Any, join: Any, look: Any) -> None:
    await join("alice")
    status, body = await api("state")
    assert status == 200
    state = msgspec.convert(body, Snapshot)
    assert [view.name for view in state.devices[0].sessions] == ["alice"]
    assert state.broker == look().broker


async def test_a_change_reaches_the_broker(api: Any, join: Any, sessions: Any) -> None:
    await join("alice")
    status, body = await api(
        "sessions", "alice", method="PATCH", body={"weight": 2.5, "priority": 3, "paused": True}
    )
    assert status == 200
    assert (body["weight"], body["priority"], body["state"]) == (2.5, 3, "paused")
    assert sessions()["alice"].weight == 2.5
    _, body = await api("sessions", "alice", method="PATCH", body={"priority": 1})
    assert (body["weight"], body["priority"]) == (2.5, 1)


@pytest.mark.system
async def test_a_change_is_read_at_once_where_it_was_made(api: Any, join: Any) -> None:
    await join("alice")
    for weight in (2.0, 3.0, 4.0, 5.0):
        await api("sessions", "alice", method="PATCH", body={"weight": weight})
        _, (alice,) = await api("sessions")
        assert alice["weight"] == weight
    for policy in ("fifo", "las", "fair"):
        await api("policy", method="PUT", body={"policy": policy})
        assert (await api("policy"))[1]["policy"] == policy


async def test_no_user_writes_lines_of_the_servers_log(
    api: Any, found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await found()
    forged = "x\n[I root has logged in\x1b[2J"
    status, answer = await api("sessions", forged, method="PATCH", body={"paused": True})
    assert (status, answer["code"]) == (404, "unknown_session")
    assert (await api("sessions", forged, "asks", method="POST", body={"ask": "yield"}))[0] == 404
    assert sum("404" in record.getMessage() for record in caplog.records) >= 2
    group = {"group": "x\n[I root has logged in\x1b[2J", "on": True}
    assert (await api("classes", method="PUT", body=group))[0] == 400
    logged = [record.getMessage() for record in caplog.records]
    assert not [line for line in logged if "\n[I" in line or "\x1b" in line]


async def test_the_policy_can_be_read_and_chosen_in_either_case(
    api: Any, found: Any, look: Any
) -> None:
    await found()
    status, before = await api("policy")
    assert status == 200
    assert before["policy"] == "fair"
    assert "srtf" in [policy["name"] for policy in before["policies"]]
    status, after = await api("policy", method="PUT", body={"policy": "SRTF", "running_lanes": 2})
    assert status == 200
    assert (after["policy"], after["running_lanes"]["host"]) == ("srtf", 2)
    assert look().policy == "srtf"


async def test_a_waiting_session_is_shown_with_its_queue_position_and_reason(
    api: Any, join: Any, shown: Any
) -> None:
    demand = Demand(1000, 500, True)
    alice, bob = await join("alice", demand=demand), await join("bob", demand=demand)
    alice.send(m.Request(1))
    alice.receive()
    bob.send(m.Request(1))
    await shown(lambda state: any(view.position == 1 for view in state.devices[0].sessions))
    _, body = await api("sessions")
    views = {view["name"]: view for view in body}
    assert (views["alice"]["state"], views["bob"]["state"]) == ("running", "waiting")
    assert (views["alice"]["device"], views["bob"]["device"]) == ("host", "host")
    assert views["bob"]["reason"] == "waits for alice"
    assert views["bob"]["why"] == [{"code": "waits_for", "other": views["alice"]["id"]}]


# --- requests to a notebook ----------------------------------------------------------------------


@pytest.mark.system
async def test_a_holder_is_asked_to_yield_and_a_wait_is_cancelled(
    api: Any, join: Any, shown: Any
) -> None:
    demand = Demand(1000, 500, True)
    alice, bob = await join("alice", demand=demand), await join("bob", demand=demand)
    alice.send(m.Request(1))
    await asyncio.to_thread(next_of, alice, m.Grant)
    status, body = await api("sessions", "alice", "asks", method="POST", body={"ask": "yield"})
    assert (status, body["name"]) == (200, "alice")
    assert await asyncio.to_thread(next_of, alice, m.Yield) == m.Yield(1)
    bob.send(m.Request(1))
    await shown(lambda state: any(view.position for view in state.devices[0].sessions))
    assert (await api("sessions", "bob", "asks", method="POST", body={"ask": "cancel"}))[0] == 200
    assert (await asyncio.to_thread(next_of, bob, m.Withdraw)).turn == 1


async def test_a_viewer_is_told_their_permissions(api: Any, found: Any) -> None:
    await found()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert await api("viewer") == (
        200,
        {
            "type": "Viewer",
            "user": user,
            "is_administrator": True,
            "may_change": True,
            "kernels": {},
            "sees_processes": True,
        },
    )


@pytest.mark.system
async def test_the_viewers_kernels_are_named_with_their_processes(
    api: Any, found: Any, jp_serverapp: Any, extension: Any
) -> None:
    await found()
    kernel = await jp_serverapp.kernel_manager.start_kernel()
    try:
        _, viewer = await api("viewer")
        assert list(viewer["kernels"]) == [kernel]
        assert Path(f"/proc/{viewer['kernels'][kernel]}").exists()
        extension.feed.sees_processes = False  # as if the broker were outside of a container
        _, viewer = await api("viewer")
        assert (viewer["kernels"], viewer["sees_processes"]) == ({}, False)
    finally:
        await jp_serverapp.kernel_manager.shutdown_all()


@pytest.mark.system
async def test_a_state_that_is_asked_for_late_has_aged(
    api: Any, join: Any, shown: Any, extension: Any
) -> None:
    alice = await join("alice", demand=Demand(1000, 500, True))
    alice.send(m.Request(1))
    await shown(lambda state: state.devices[0].sessions[0].state == "running")
    extension.feed._came -= 100.0  # as if it had come that long ago
    _, body = await api("state")
    assert body["devices"][0]["turns"][0]["began"] >= 100.0
