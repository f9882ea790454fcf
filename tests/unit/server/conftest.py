"""A Jupyter server with the extension, and sessions at a real broker."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from jupyter_gpushare_server import _unload_jupyter_server_extension
from jupyter_gpushare_server.app import GpuShareExtension
from jupyter_gpushare_server.events.audit import CHANGE, INTERVENTION, POLICY, SESSION
from jupyter_gpushare_server.feed import State
from tornado.httpclient import HTTPResponse

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Open
from jupyter_gpushare.wire.snapshot import Snapshot

from ...makers import maker

SECONDS = 60.0


@pytest.fixture
def extension_config() -> dict[str, Any]:
    """Traits of the extension; tests override this fixture."""
    return {}


@pytest.fixture
def only_looks(extension_config: dict[str, Any]) -> None:
    extension_config["start_broker"] = False


@pytest.fixture
def jp_server_config(settings: Settings, extension_config: dict[str, Any]) -> dict[str, Any]:
    return {
        "ServerApp": {
            "jpserver_extensions": {"jupyter_gpushare": True},
            "allow_unauthenticated_access": False,
        },
        "GpuShareExtension": {
            "socket": settings.socket,
            "cluster_directory": os.path.join(os.path.dirname(settings.socket), "cluster"),
            **extension_config,
        },
    }


@pytest.fixture
def extension(jp_serverapp: Any, jp_asyncio_loop: Any) -> Iterator[GpuShareExtension]:
    """The loaded extension, which is unloaded after the test if it still has to be."""
    yield jp_serverapp.web_app.settings["gpushare"]
    jp_asyncio_loop.run_until_complete(_unload_jupyter_server_extension(jp_serverapp))


Shown = Callable[[Callable[[State], bool]], Awaitable[State]]


@pytest.fixture
def shown(extension: GpuShareExtension) -> Shown:
    """Wait for a state: `await shown(is_it)` is the first state of the server for which `is_it` is
    true."""

    async def first(is_it: Callable[[State], bool]) -> State:
        async for state in extension.feed.follow():
            if is_it(state):
                return state
        raise AssertionError("a feed does not end")

    return lambda is_it: asyncio.wait_for(first(is_it), SECONDS)


@pytest.fixture
def found(shown: Shown) -> Callable[[], Awaitable[State]]:
    """Wait for a snapshot: `await found()` is the first one."""
    return lambda: shown(lambda state: isinstance(state, Snapshot))


def names(state: State) -> set[str]:
    """Return the names of the sessions in `state`."""
    if not isinstance(state, Snapshot):
        return set()
    return {view.name for device in state.devices for view in device.sessions}


Join = Callable[..., Awaitable[Client]]


@pytest.fixture
def join(settings: Settings, shown: Shown) -> Iterator[Join]:
    """Open a session whose id is its name; return its connection once the server shows it."""
    with maker(partial(Client.connect, settings, "tests"), Client.close) as connect:

        async def join(name: str, **fields: Any) -> Client:
            client = await asyncio.to_thread(connect)
            await asyncio.to_thread(client.ask, Open(id=name, name=name, **fields))
            await shown(lambda state: name in names(state))
            return client

        yield join


Api = Callable[..., Awaitable[Any]]


@pytest.fixture
def api(jp_fetch: Callable[..., Awaitable[HTTPResponse]], extension: GpuShareExtension) -> Api:
    """Send a request: `await api("policy", method="PUT", body={...})` is the status and the decoded
    answer."""

    async def api(*path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        answer = await jp_fetch(
            "jupyter-gpushare/api/v1", *path, body=data, raise_error=False, **options
        )
        return answer.code, json.loads(answer.body)

    return api


Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def events(jp_serverapp: Any, extension: Any) -> Events:
    """All events of the extension, as (schema, data)."""
    heard: Events = []

    async def listen(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        heard.append((schema_id, data))

    for schema in (SESSION, POLICY, CHANGE, INTERVENTION):
        jp_serverapp.event_logger.add_listener(schema_id=schema, listener=listen)
    return heard
