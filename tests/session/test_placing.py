"""The GPU of a session on a host with several GPUs, with a broker that sees them all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from jupyter_gpushare_kernel.sentences import begun

from jupyter_gpushare.client.session import Session
from jupyter_gpushare.errors import UnknownDevice
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

if TYPE_CHECKING:
    from ..conftest import FakeGpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
TWO = [f"gpu GPU-{name} {16 << 30} 0 NVIDIA L4" for name in "ab"]


@pytest.fixture
def open_session(gpus: FakeGpus, opened: Callable[..., Session]) -> Callable[..., Session]:
    """Opens a session on a host with two GPUs."""
    gpus.say(*TWO)
    return opened


def test_a_number_is_that_of_the_process(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "1")
    session = open_session("a", device="cuda:0")
    assert (session.device, session.host_device) == ("cuda:0", "cuda:1")
    assert begun(session).startswith(
        "GPU sharing is on for a; device: cuda:0 (cuda:1 of this host)."
    )


@pytest.mark.usefixtures("before_cuda")
def test_a_session_with_the_choice_sees_the_gpu_that_it_got_and_no_other(
    open_session: Callable[..., Session], look: Callable[[], Snapshot]
) -> None:
    first = open_session("a", device="auto")
    assert (first.host_device, os.environ.pop(VISIBLE)) == ("cuda:0", "GPU-a")
    second = open_session("b", device="auto")
    assert (second.host_device, os.environ[VISIBLE]) == ("cuda:1", "GPU-b")
    assert first.device == second.device == "cuda:0"
    names = {device.name: [view.name for view in device.sessions] for device in look().devices}
    assert names == {"cuda:0": ["a"], "cuda:1": ["b"], "host": []}


def test_a_gpu_that_is_not_visible_is_refused_with_the_visible_ones(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "1")
    with pytest.raises(UnknownDevice, match=r"there is cuda:0 \(NVIDIA L4\), host"):
        open_session("a", device="cuda:1")


def test_auto_is_the_host_where_no_gpu_is_visible(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "")
    session = open_session("a", device="auto")
    assert (session.device, session.host_device) == ("host", "host")


def test_a_session_that_comes_back_has_its_gpu_whatever_the_environment_is_by_then(
    open_session: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    session = open_session("a", device="cuda:1")
    monkeypatch.setenv(VISIBLE, "0")
    with session._link.lock:
        session._link.drop()
        assert session._link.restored()
    assert (session.device, session.host_device) == ("cuda:1", "cuda:1")
    assert sessions()["a"].state == "idle"


def test_a_session_that_waits_for_unmanaged_memory_is_told_so_and_has_it_afterwards(
    gpus: FakeGpus, settings: Settings
) -> None:
    gpus.say(TWO[0], f"process 1 {16 << 30}")
    demand = m.Demand(1 << 30, 1 << 30, measured=True)
    with Client.connect(settings, "tests") as client:
        client.ask(m.Open("a", "a.ipynb", "cuda:0", demand=demand))
        client.send(m.Request(1))
        wait = client.receive()
        assert isinstance(wait, m.Wait)
        assert wait.reason == (
            "waits for memory: needs 2.0 GiB, 0 B are free, 16.0 GiB are unmanaged memory"
        )
        gpus.say(TWO[0])
        while isinstance(news := client.receive(), m.Wait):
            pass
        assert isinstance(news, m.Grant)
