"""The WebSocket that pushes the state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jupyter_gpushare_server.handlers import NAMESPACE

from jupyter_gpushare.wire.messages import Error

MEGABYTE = "x" * 10**6


async def pushed(events: Any, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first state read from `events` for which `is_it` is true."""
    while True:
        state: dict[str, Any] = json.loads(await asyncio.wait_for(events.read_message(), 60))
        if is_it(state):
            return state


def people(state: dict[str, Any]) -> list[str]:
    return [view["name"] for device in state.get("devices", []) for view in device["sessions"]]


async def test_the_first_push_is_immediate(join: Any, jp_ws_fetch: Any) -> None:
    await join("alice")
    events = await jp_ws_fetch(NAMESPACE, "events")
    viewer = json.loads(await events.read_message())
    assert (viewer["type"], viewer["may_change"]) == ("Viewer", True)
    assert people(json.loads(await events.read_message())) == ["alice"]


async def test_every_open_socket_hears_of_a_change(join: Any, jp_ws_fetch: Any) -> None:
    goes, *sockets = [await jp_ws_fetch(NAMESPACE, "events") for _ in range(4)]
    goes.close()
    await join("alice")
    for events in sockets:
        await pushed(events, lambda state: people(state) == ["alice"])


async def test_a_socket_that_is_not_read_skips_to_the_newest(
    extension: Any, found: Any, jp_ws_fetch: Any
) -> None:
    await found()
    events = await jp_ws_fetch(NAMESPACE, "events")
    await pushed(events, lambda message: message["type"] != "Viewer")
    states = [Error(str(number), MEGABYTE) for number in range(60)]
    for state in states:  # more than all buffers of the kernel hold
        extension.feed._publish(state)
        for _ in range(10):
            await asyncio.sleep(0)  # let the server write as much as it can
    read = []
    while not read or read[-1] != states[-1].code:
        read.append(json.loads(await asyncio.wait_for(events.read_message(), 60))["code"])
    assert len(read) < len(states) / 2
