"""Which users may look, and which may change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jupyter_gpushare_server.handlers import NAMESPACE
from jupyter_gpushare_server.openapi import document
from jupyter_server.auth import Authorizer
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

VERBS = [(path, verb) for path, verbs in document()["paths"].items() for verb in verbs]


class LookersOnly(Authorizer):
    """An authorizer that lets all users read, and do nothing else."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return action == "read"


@pytest.fixture
def read_only(jp_server_config: dict[str, Any]) -> None:
    jp_server_config["ServerApp"]["authorizer_class"] = LookersOnly


async def test_without_a_token_everything_is_403(
    extension: Any, http_server_client: Any, jp_base_url: str
) -> None:
    for path, verb in VERBS:
        body = None if verb == "get" else "{}"
        url = f"{jp_base_url}{NAMESPACE}{path}"
        with pytest.raises(HTTPClientError) as error:
            await http_server_client.fetch(url, method=verb.upper(), body=body)
        assert error.value.code == 403, (path, verb)


async def test_a_user_that_may_only_read_changes_nothing(
    read_only: None, api: Any, join: Any, sessions: Any, look: Any
) -> None:
    await join("alice")
    assert (await api("sessions"))[0] == 200
    assert (await api("sessions", "alice", method="PATCH", body={"weight": 9}))[0] == 403
    assert (await api("policy", method="PUT", body={"policy": "fifo"}))[0] == 403
    for ask in ("yield", "page_out", "cancel"):
        assert (await api("sessions", "alice", "asks", method="POST", body={"ask": ask}))[0] == 403
    assert (await api("viewer"))[1]["may_change"] is False
    assert sessions()["alice"].weight == 1.0
    assert look().policy == "fair"


@pytest.mark.system
async def test_a_user_that_may_only_read_gets_the_socket_which_takes_nothing(
    read_only: None, extension: Any, jp_ws_fetch: Any
) -> None:
    events = await jp_ws_fetch(NAMESPACE, "events")
    viewer = json.loads(await events.read_message())
    assert (viewer["type"], viewer["may_change"]) == ("Viewer", False)


class WritersOnly(Authorizer):
    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return action != "read"


@pytest.fixture
def write_only(jp_server_config: dict[str, Any]) -> None:
    jp_server_config["ServerApp"]["authorizer_class"] = WritersOnly


@pytest.mark.system
async def test_a_user_that_may_not_read_gets_no_socket(
    write_only: None, extension: Any, jp_ws_fetch: Any
) -> None:
    with pytest.raises(HTTPClientError) as error:
        await jp_ws_fetch(NAMESPACE, "events")
    assert error.value.code == 403


# --- other pages in the same browser --------------------------------------------------------------


async def cookies(client: Any, base_url: str, header: dict[str, str]) -> dict[str, str]:
    """Return the headers that the browser of a logged-in user sends, whichever page asks."""
    url = f"{base_url}{NAMESPACE}/viewer"
    seen = await client.fetch(url, headers=header)
    given = (one.partition(";")[0] for one in seen.headers.get_list("Set-Cookie"))
    headers = {"Cookie": "; ".join(given)}
    await client.fetch(url, headers=headers)
    return headers


@pytest.mark.system
async def test_a_socket_that_a_page_of_another_site_opens_is_403(
    extension: Any,
    http_server_client: Any,
    jp_http_port: int,
    jp_base_url: str,
    jp_auth_header: dict[str, str],
) -> None:
    known = await cookies(http_server_client, jp_base_url, jp_auth_header)
    url = f"ws://127.0.0.1:{jp_http_port}{jp_base_url}{NAMESPACE}/events"

    async def opened_from(site: str) -> Any:
        return await websocket_connect(HTTPRequest(url, headers={**known, "Origin": site}))

    (await opened_from(f"http://127.0.0.1:{jp_http_port}")).close()
    with pytest.raises(HTTPClientError) as error:
        await opened_from("http://evil.example")
    assert error.value.code == 403


CHANGES = [(path, verb) for path, verb in VERBS if verb != "get"]


@pytest.mark.system
async def test_a_browser_without_the_pages_token_changes_nothing(
    extension: Any, http_server_client: Any, jp_base_url: str, jp_auth_header: dict[str, str]
) -> None:
    known = await cookies(http_server_client, jp_base_url, jp_auth_header)
    for path, verb in CHANGES:
        url = f"{jp_base_url}{NAMESPACE}{path}"
        with pytest.raises(HTTPClientError) as error:
            await http_server_client.fetch(url, method=verb.upper(), headers=known, body="{}")
        assert error.value.code == 403, (path, verb)
        assert "_xsrf" in error.value.response.body.decode()
