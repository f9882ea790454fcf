"""The socket that pushes the state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jupyter_gpushare_server.handlers import NAMESPACE


async def pushed(events: Any, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first state read from `events` that `is_it`."""
    while True:
        state: dict[str, Any] = json.loads(await asyncio.wait_for(events.read_message(), 20))
        if is_it(state):
            return state


def people(state: dict[str, Any]) -> list[str]:
    return [view["name"] for device in state.get("devices", []) for view in device["sessions"]]


async def test_the_first_push_is_immediate(join: Any, jp_ws_fetch: Any) -> None:
    await join("alice")
    events = await jp_ws_fetch(NAMESPACE, "events")
    assert people(json.loads(await events.read_message())) == ["alice"]


async def test_every_socket_hears_of_a_change(join: Any, jp_ws_fetch: Any) -> None:
    sockets = [await jp_ws_fetch(NAMESPACE, "events") for _ in range(3)]
    await join("alice")
    for events in sockets:
        await pushed(events, lambda state: people(state) == ["alice"])


async def test_sockets_that_close_leave_the_others_alone(join: Any, jp_ws_fetch: Any) -> None:
    stays, goes = [await jp_ws_fetch(NAMESPACE, "events") for _ in range(2)]
    goes.close()
    await join("alice")
    await pushed(stays, lambda state: people(state) == ["alice"])


async def test_who_is_slow_gets_the_newest_and_nothing_between(join: Any, extension: Any) -> None:
    await join("alice")
    slow = extension.feed.follow()
    await slow.__anext__()
    for name in ("bob", "carol", "dave"):
        await join(name)
    newest = await slow.__anext__()
    assert newest is extension.feed.state
