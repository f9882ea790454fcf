"""The way to the service of jobs over a hub, if its address has another program, or none.
`batch.py` shows that the way works."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from jupyter_gpushare.errors import BrokerUnavailable, ConnectionLost, InvalidValue, ProtocolError
from jupyter_gpushare.jobs.connection import Cluster, ask
from jupyter_gpushare.jobs.hub import TOKEN
from jupyter_gpushare.settings import Settings, load


class Another(BaseHTTPRequestHandler):
    """A page of another program, which sends visitors elsewhere."""

    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_response(302 if "moved" in self.path else 200)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b"<html>hello")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def another() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Another)
    Thread(target=server.serve_forever).start()
    Another.tokens.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")


def over(url: str) -> Settings:
    return load({}, cluster_url=url)


@pytest.mark.parametrize(("path", "status"), [("/services/gpushare", 200), ("/moved", 302)])
def test_what_is_no_service_of_jobs_is_said_so(another: str, path: str, status: int) -> None:
    with pytest.raises(ProtocolError, match=f"{path} is not the service .* with status {status}"):
        ask(over(another + path), Cluster.look)
    assert Another.tokens == ["token secret"]  # which goes nowhere else


def test_a_hub_that_is_away_is_said_so() -> None:
    nowhere = "http://127.0.0.1:9/services/gpushare"
    with pytest.raises(ConnectionLost, match=f"{nowhere} does not answer: Connection refused"):
        ask(over(nowhere), Cluster.look)


def test_a_process_that_no_hub_has_started_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN)
    with pytest.raises(
        BrokerUnavailable, match=f"this process has no {TOKEN}, as servers of a hub"
    ):
        Cluster(over("http://127.0.0.1:9/services/gpushare"))


@pytest.mark.parametrize("url", ["hub.example", "ftp://hub/x", "https://", "http://hub/x?y", "/x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match="cluster_url"):
        over(url)
