"""The hub's service without a hub: errors about a wrong environment, and the tokens of its
visitors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jupyter_gpushare_server import hub_service
from jupyter_gpushare_server.feed import Feed
from jupyter_gpushare_server.hub_service import (
    MOST_BODY_BYTES,
    READ,
    HubExtension,
    HubService,
    bounded_server,
    proven_token,
)
from jupyterhub.services.auth import HubOAuth, HubOAuthenticated
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.ioloop import IOLoop
from tornado.testing import bind_unused_port

from jupyter_gpushare.wire.snapshot import Snapshot

SECONDS = 60.0


class Echo(web.RequestHandler):
    def post(self) -> None:
        self.finish(str(len(self.request.body)))


async def said_to(request: bytes, seconds: float) -> bytes:
    """Return the whole answer of a server, until it hangs up, to a client that sends only this."""
    server = bounded_server(web.Application([("/", Echo)]), seconds)
    listener, port = bind_unused_port()
    server.add_socket(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    server.stop()
    return answer


def post(length: int, body: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


async def test_half_a_request_is_not_waited_for() -> None:
    assert await said_to(b"POST / HTTP/1.1\r\nHost:", seconds=0.2) == b""
    assert b"200 OK" not in await said_to(post(100, b"half"), seconds=0.2)
    assert (await said_to(post(4, b"half"), seconds=10.0)).endswith(b"\r\n\r\n4")


async def test_a_body_that_is_too_long_is_not_read() -> None:
    right = await said_to(post(MOST_BODY_BYTES, b"x" * MOST_BODY_BYTES), seconds=10.0)
    assert right.endswith(str(MOST_BODY_BYTES).encode())
    assert b"200 OK" not in await said_to(post(MOST_BODY_BYTES + 1, b"x"), seconds=10.0)


@pytest.mark.parametrize("url", ["", "127.0.0.1:18090", "http://127.0.0.1", "http://x:port"])
def test_an_invalid_address_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", url)
    assert hub_service.main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"jupyter-gpushare-hub: JUPYTERHUB_SERVICE_URL is {url!r}")
    assert said.count("\n") == 1


# --- tokens of visitors ---------------------------------------------------------------------------


class Proven(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]  # untyped for us
    """Answers with the token that proves the user."""

    def initialize(self, hub_auth: HubOAuth) -> None:
        self.hub_auth = hub_auth

    async def get(self) -> None:
        await self.hub_auth.get_user(self, sync=False)
        self.finish(proven_token(self.hub_auth, self) or "none")


async def test_a_wrong_token_in_the_header_is_not_taken_for_the_one_of_the_cookie(hub: Any) -> None:
    known, other = hub.user("ada"), hub.user("bob")
    hub_auth = HubOAuth(
        api_url=hub.api_url, api_token="own", base_url="/", oauth_client_id="service-gpushare"
    )
    secret = "of the cookies"
    pages = web.Application([("/", Proven, {"hub_auth": hub_auth})], cookie_secret=secret)
    server = bounded_server(pages)
    listener, port = bind_unused_port()
    server.add_socket(listener)
    cookie = web.create_signed_value(secret, hub_auth.cookie_name, known).decode()

    async def proven(header: str) -> str:
        headers = {"Cookie": f"{hub_auth.cookie_name}={cookie}", "Authorization": header}
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/", headers=headers)
        return answer.body.decode()

    assert await proven("") == known
    assert await proven("token guessed") == known
    assert await proven(f"token {other}") == other
    server.stop()


@pytest.fixture
def service(
    hub: Any, hub_broker: Any, monkeypatch: pytest.MonkeyPatch, jp_asyncio_loop: Any
) -> Iterator[HubService]:
    """The service, as the hub starts it."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", hub.person("gpushare", kind="service"))
    monkeypatch.setenv("JUPYTERHUB_API_URL", hub.api_url)
    monkeypatch.setenv("JUPYTERHUB_CLIENT_ID", "service-gpushare")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_NAME", "gpushare")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/services/gpushare/")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:1")

    async def loaded() -> HubService:
        service = HubService()
        service.extension.load(service)
        return service

    service = jp_asyncio_loop.run_until_complete(loaded())
    yield service
    jp_asyncio_loop.run_until_complete(service.extension.unload())


@pytest.fixture
def extension(service: HubService) -> HubExtension:
    return service.extension


async def test_a_token_that_ended_is_shown_once_for_each_page(
    hub: Any, extension: HubExtension
) -> None:
    """The page of another visitor is not affected."""
    right = await extension.admit("bob", hub.person("bob", [READ]), True)
    assert isinstance(right.feed.state, Snapshot)
    refused = await extension.admit("ada", "ended", True)
    said = [state async for state in refused.feed.follow()]  # which ends
    assert [getattr(state, "code", "") for state in said] == ["not_permitted"]
    await asyncio.to_thread(refused.feed._thread.join)
    assert hub.asked.count("ended") == 1
    assert await extension.admit("ada", "ended", True) is not refused
    assert not right.feed.is_refused
    await right.feed.close()


async def test_a_page_logs_in_again_once_the_broker_has_refused_its_token(
    hub: Any, service: HubService
) -> None:
    """The service has cached the hub's answer about a token that has ended since."""
    token = hub.person("ada", [READ, "access:services!service=gpushare"])
    assert await service.hub_auth.user_for_token(token, sync=False)
    del hub.of[token]
    pages = service._application()
    server = bounded_server(pages)
    listener, port = bind_unused_port()
    server.add_socket(listener)
    name, secret = service.hub_auth.cookie_name, pages.settings["cookie_secret"]
    cookie = web.create_signed_value(secret, name, token).decode()

    async def page() -> HTTPResponse:
        return await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{port}{service.hub_auth.base_url}",
            headers={"Cookie": f"{name}={cookie}"},
            follow_redirects=False,
            raise_error=False,
        )

    assert (await page()).code == 200  # and shows the broker's refusal
    again = await page()
    assert again.code == 302
    assert "/oauth2/authorize?" in again.headers["Location"]
    server.stop()


@pytest.mark.system
async def test_a_page_is_told_of_a_right_that_the_hub_gives_its_user(
    hub: Any, hub_broker: Any, io_loop: IOLoop
) -> None:
    hub_broker.restart(hub_cache_seconds=0.001)
    token = hub.user("ada")
    heard: asyncio.Queue[bool] = asyncio.Queue()
    feed = Feed(
        hub_broker.settings,
        io_loop,
        logging.getLogger("feed"),
        lambda _: heard.put_nowait(feed.welcome is not None and feed.welcome.is_administrator),
        lambda hello, _: msgspec.structs.replace(hello, token=token),
    )
    feed.start()
    assert not await asyncio.wait_for(heard.get(), SECONDS)
    hub.of[token]["scopes"].append("admin:users")
    while not await asyncio.wait_for(heard.get(), SECONDS):
        pass
    await feed.close()
