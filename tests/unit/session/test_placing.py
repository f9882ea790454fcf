"""The GPU of a session, or several, on a host with three: the broker sees them all."""

from __future__ import annotations

import os
from functools import partial

import pytest
from jupyter_gpushare_kernel.sentences import begun

from jupyter_gpushare.client.session.placement import OLD_BROKER
from jupyter_gpushare.errors import ProtocolError, UnknownDevice
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

from ...conftest import FakeGpus, Look, Opened, Sessions

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREE = [f"gpu GPU-{name} {16 << 30} 0 NVIDIA L4" for name in "abc"]


@pytest.fixture
def open_session(gpus: FakeGpus, opened: Opened) -> Opened:
    gpus.say(*THREE)
    return opened


@pytest.fixture
def open_gang(open_session: Opened) -> Opened:
    """Opens a session in this process, which has not used a GPU."""
    return partial(open_session, "gang", device="auto")


def test_a_number_is_that_of_the_process(
    open_session: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "1")
    session = open_session("a", device="cuda:0")
    assert (session.device, session.host_device) == ("cuda:0", "cuda:1")
    assert begun(session).startswith(
        "GPU sharing is on for a; device: cuda:0 (cuda:1 of this host)."
    )


@pytest.mark.usefixtures("before_cuda")
def test_a_session_with_the_choice_sees_the_gpu_that_it_got_and_no_other(
    open_session: Opened, look: Look
) -> None:
    first = open_session("a", device="auto")
    assert (first.host_device, os.environ.pop(VISIBLE)) == ("cuda:0", "GPU-a")
    second = open_session("b", device="auto")
    assert (second.host_device, os.environ[VISIBLE]) == ("cuda:1", "GPU-b")
    assert first.device == second.device == "cuda:0"
    names = {device.name: [view.name for view in device.sessions] for device in look().devices}
    assert names == {"cuda:0": ["a"], "cuda:1": ["b"], "cuda:2": [], "host": []}


def test_a_session_that_comes_back_has_its_gpu_whatever_the_environment_is_by_then(
    open_session: Opened, monkeypatch: pytest.MonkeyPatch, sessions: Sessions
) -> None:
    session = open_session("a", device="cuda:1")
    monkeypatch.setenv(VISIBLE, "0")
    with session._link.lock:
        session._link.drop()
        assert session._link.restored()
    assert (session.device, session.host_device) == ("cuda:1", "cuda:1")
    assert sessions()["a"].state == "idle"


# --- several at once ------------------------------------------------------------------------


@pytest.mark.usefixtures("before_cuda")
def test_a_process_that_had_one_gpu_may_have_several_afterwards(open_gang: Opened) -> None:
    open_gang(devices=1).close()
    assert os.environ[VISIBLE] == "GPU-a"
    assert open_gang(devices=3).host_devices == ["cuda:0", "cuda:1", "cuda:2"]


@pytest.mark.usefixtures("before_cuda")
def test_a_gang_has_only_devices_that_the_process_may_see(
    open_gang: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "2,1")
    assert open_gang(devices=2).host_devices == ["cuda:2", "cuda:1"]
    assert os.environ[VISIBLE] == "GPU-c,GPU-b"


@pytest.mark.parametrize(
    ("device", "there"),
    [("host", "host"), ("auto", "cuda:0, cuda:1, cuda:2"), ("cuda:1", "cuda:1")],
)
def test_more_devices_than_there_are_is_one_sentence(
    open_gang: Opened, device: str, there: str
) -> None:
    with pytest.raises(UnknownDevice) as raised:
        open_gang(devices=4, device=device)
    assert str(raised.value) == (
        f"4 devices at once are more than this notebook may use here: {there}"
    )


@pytest.mark.usefixtures("before_cuda")
def test_a_broker_that_knows_no_gangs_is_reported_as_old(
    open_gang: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the field that it does not know, and answers as to all others."""
    answer = m.Opened("gang", "cuda:0", 16 << 30, 0, "GPU-a")
    with monkeypatch.context() as patched:
        patched.setattr(Client, "ask", lambda *args, **more: answer)
        with pytest.raises(ProtocolError) as raised:
            open_gang(devices=2)
    assert str(raised.value) == OLD_BROKER
