"""The page while its Jupyter server does not answer: what it says of the kernels is so."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from jupyter_gpushare.wire.snapshot import SessionView

from ..polling import until
from .conftest import Lab

if TYPE_CHECKING:
    from .conftest import Server

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

NO_ANSWER = "The server of this page does not answer"
ENDED = "If that server has ended, the kernels that it started have ended with it"
LIVES = "If only its connection to this page is lost, they go on."
OURS = "jupyter-gpushare"  # the scripts that must not throw; JupyterLab's may without a server


class Relay:
    """Passes connections on to a port of this machine, until they are cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_cut = False
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()


def pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture
def server(own_server: Server) -> Server:
    """One that a test may end."""
    return own_server


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    relay = Relay(server.port)
    yield relay
    relay.close()


def training(new_page: Any, url: str) -> Lab:
    """Return a page whose notebook trains."""
    lab = Lab(new_page(1280, 800, OURS), f"{url}/lab", "alice.ipynb")
    lab.run_all()
    expect(lab.row("alice.ipynb")).to_have_class(re.compile("jp-mod-running"))
    return lab


def expect_no_answer(lab: Lab) -> None:
    away = lab.panel.locator(".jp-GpuShare-away")
    for sentence in (NO_ANSWER, ENDED, LIVES):
        expect(away).to_contain_text(sentence)
    expect(lab.panel).not_to_contain_text("Nothing is lost")


@pytest.mark.system
@pytest.mark.parametrize(
    "by",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)],
    ids=lambda by: by.name,
)
def test_kernels_end_with_their_server_and_the_page_shows_so_when_it_is_back(
    server: Server,
    new_page: Any,
    sessions: Callable[[], dict[str, SessionView]],
    by: signal.Signals,
) -> None:
    lab = training(new_page, server.url)
    kernel = sessions()["alice.ipynb"].pid
    server.end(by)
    expect_no_answer(lab)
    until(lambda: not psutil.pid_exists(kernel))
    until(lambda: sessions() == {})

    server.start()
    expect(lab.panel.locator(".jp-GpuShare-away")).to_have_count(0)
    expect(lab.panel).to_contain_text("No notebook shares this device")
    expect(lab.row("alice.ipynb")).to_have_count(0)


@pytest.mark.thorough
def test_kernels_go_on_while_only_the_connection_of_the_page_is_lost(
    relay: Relay, new_page: Any, sessions: Callable[[], dict[str, SessionView]]
) -> None:
    lab = training(new_page, relay.url)
    kernel = sessions()["alice.ipynb"].pid
    relay.cut()
    expect_no_answer(lab)
    before = sessions()["alice.ipynb"].iterations
    until(lambda: sessions()["alice.ipynb"].iterations > before)

    relay.mend()
    expect(lab.panel.locator(".jp-GpuShare-away")).to_have_count(0)
    expect(lab.row("alice.ipynb")).to_have_class(re.compile("jp-mod-running"))
    assert sessions()["alice.ipynb"].pid == kernel
