"""The broker ends, never starts, or was there before the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jupyter_gpushare_server import _unload_jupyter_server_extension
from jupyter_gpushare_server.feed import Feed, State
from jupyter_gpushare_server.handlers import NAMESPACE
from tornado.ioloop import IOLoop

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Error
from jupyter_gpushare.wire.snapshot import Snapshot


async def kind(events: Any) -> str:
    """Wait for the next state."""
    while (message := json.loads(await events.read_message()))["type"] == "Viewer":
        pass
    return str(message["type"])


async def test_a_killed_broker_is_away_then_comes_back(
    api: Any, found: Any, shown: Any, jp_ws_fetch: Any
) -> None:
    killed = (await found()).broker.pid
    events = await jp_ws_fetch(NAMESPACE, "events")
    assert await kind(events) == "Snapshot"
    away = asyncio.ensure_future(shown(lambda state: isinstance(state, Error)))
    await asyncio.sleep(0)  # it follows now
    os.kill(killed, signal.SIGKILL)
    assert (await away).message
    assert await kind(events) == "Error"
    again = await shown(lambda state: isinstance(state, Snapshot))
    assert again.broker.pid != killed
    assert await kind(events) == "Snapshot"
    assert (await api("state"))[0] == 200


async def test_while_no_broker_answers_requests_are_503(
    only_looks: None, api: Any, shown: Any
) -> None:
    await shown(lambda state: isinstance(state, Error) and "no broker" in state.message)
    for path in ("state", "sessions", "policy"):
        status, body = await api(path)
        assert (status, body["code"]) == (503, "unavailable")
        assert "broker" in body["message"]
    status, body = await api("policy", method="PUT", body={"policy": "fifo"})
    assert (status, body["code"]) == (503, "unavailable")


async def test_the_broker_outlives_the_server(found: Any, jp_serverapp: Any, settings: Any) -> None:
    pid = (await found()).broker.pid
    await _unload_jupyter_server_extension(jp_serverapp)
    with Client.connect(settings, "tests", start=False) as client:
        assert client.welcome.pid == pid


@pytest.fixture
def impossible_socket(jp_server_config: dict[str, Any], socket_directory: Path) -> str:
    """A socket path that no Unix socket can have."""
    path = str(socket_directory / ("x" * 120))
    jp_server_config["GpuShareExtension"]["socket"] = path
    return path


async def test_a_server_starts_where_no_broker_can_and_says_why(
    impossible_socket: str, api: Any, shown: Any
) -> None:
    await shown(lambda state: isinstance(state, Error) and impossible_socket in state.message)
    status, body = await api("state")
    assert status == 503
    assert "at most 107" in body["message"]


@pytest.fixture
def wrong_setting(jp_server_config: dict[str, Any]) -> None:
    jp_server_config["GpuShareExtension"]["quantum_seconds"] = -1.0


async def test_a_wrong_setting_leaves_the_server_alone(
    wrong_setting: None, jp_serverapp: Any, jp_fetch: Any
) -> None:
    assert "gpushare" not in jp_serverapp.web_app.settings
    assert (await jp_fetch("api", "status")).code == 200


async def test_the_log_says_once_that_there_is_no_broker(
    settings: Settings, io_loop: IOLoop, caplog: pytest.LogCaptureFixture
) -> None:
    heard: asyncio.Queue[State] = asyncio.Queue()
    log = logging.getLogger("feed")
    only_looks = msgspec.structs.replace(settings, start_broker=False)
    feed = Feed(only_looks, io_loop, log, heard.put_nowait)
    feed.start()
    for _ in range(3):  # it tries again and again
        await asyncio.wait_for(heard.get(), 60)
    await feed.close()
    (line,) = [text for text in caplog.messages if "no broker" in text]
    assert settings.socket in line
