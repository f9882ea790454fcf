"""The hub's service without a hub: its sentences about a wrong environment."""

from __future__ import annotations

import asyncio

import pytest
from jupyter_gpushare_server import hub_service
from jupyter_gpushare_server.hub_service import MOST_BODY_BYTES, bounded_server
from tornado import web
from tornado.testing import bind_unused_port

SECONDS = 60.0


class Echo(web.RequestHandler):
    def post(self) -> None:
        self.finish(str(len(self.request.body)))


async def said_to(request: bytes, seconds: float) -> bytes:
    """Return all that a server answers to a client that sends no more than this, until it hangs
    up."""
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
