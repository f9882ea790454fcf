"""The page while its Jupyter server does not answer: what it says of the kernels is so."""

from __future__ import annotations

import re
import signal
from typing import Any

import psutil
import pytest

from ...conftest import Sessions
from ...polling import until
from .conftest import Lab, Server

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

SENTENCES = (
    "The server of this page does not answer",
    "If that server has ended, the kernels that it started have ended with it",
    "If only its connection to this page is lost, they go on.",
)
OURS = "jupyter-gpushare"  # the scripts that must not throw; JupyterLab's may without a server


@pytest.fixture
def server(own_server: Server) -> Server:
    """One that a test may end."""
    return own_server


@pytest.mark.system
@pytest.mark.parametrize(
    "by",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)],
    ids=lambda by: by.name,
)
def test_kernels_end_with_their_server_and_the_page_shows_so_when_it_is_back(
    server: Server, new_page: Any, sessions: Sessions, by: signal.Signals
) -> None:
    lab = Lab(new_page(1280, 800, OURS), f"{server.url}/lab", "alice.ipynb")
    lab.run_all()
    expect(lab.row("alice.ipynb")).to_have_class(re.compile("jp-mod-running"))
    kernel = sessions()["alice.ipynb"].pid
    server.end(by)
    away = lab.panel.locator(".jp-GpuShare-away")
    for sentence in SENTENCES:
        expect(away).to_contain_text(sentence)
    expect(lab.panel).not_to_contain_text("Nothing is lost")
    until(lambda: not psutil.pid_exists(kernel))
    until(lambda: sessions() == {})

    server.start()
    expect(away).to_have_count(0)
    expect(lab.panel).to_contain_text("No notebook shares this device")
    expect(lab.row("alice.ipynb")).to_have_count(0)
