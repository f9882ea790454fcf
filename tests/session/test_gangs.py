"""Sessions that have several GPUs at once, in real processes, with a broker that sees three."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
from jupyter_gpushare_kernel import sentences

from jupyter_gpushare.client.placement import OLD_BROKER
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.errors import ProtocolError, UnknownDevice
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Opened
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from .conftest import Process
from .test_session import overlaps

if TYPE_CHECKING:
    from ..conftest import FakeGpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREE = [f"gpu GPU-{name} {16 << 30} 0 NVIDIA L4" for name in "abc"]
TURNS = """
import json, os, sys, time
import jupyter_gpushare as gpushare

name, device, devices, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
held = []
with gpushare.session(name=name, device=device, devices=devices) as session:
    print("open", flush=True)
    for number in gpushare.iterations(range(count)):
        begin = time.monotonic()
        while time.monotonic() < begin + 0.002:
            pass
        held.append((begin, time.monotonic()))
        if number == 5:
            print("training", flush=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
print(json.dumps({"held": held, "iterations": session.iterations, "visible": visible,
                  "on": session.host_devices or [session.host_device]}))
"""


@pytest.fixture
def run(gpus: FakeGpus, run: Callable[..., Process]) -> Callable[..., Process]:
    gpus.say(*THREE)
    return partial(run, TURNS)


@pytest.fixture
def open_gang(gpus: FakeGpus, opened: Callable[..., Session]) -> Callable[..., Session]:
    """Opens a session in this process, which has not used a GPU."""
    gpus.say(*THREE)
    return partial(opened, "gang", device="auto")


def test_a_gang_and_sessions_with_one_device_take_turns(run: Callable[..., Process]) -> None:
    gang = run("gang", "auto", 2, 150)
    singles = [run(f"single{number}", f"cuda:{number}", 1, 150) for number in range(2)]
    other = run("other", "auto", 2, 150)
    results = [process.result() for process in (gang, *singles, other)]
    assert [result["iterations"] for result in results] == [150] * 4
    devices = {device for result in results for device in result["on"]}  # type: ignore[attr-defined]
    assert devices == {"cuda:0", "cuda:1", "cuda:2"}
    for device in devices:
        there = [result for result in results if device in result["on"]]  # type: ignore[operator]
        assert overlaps(there) == 0
    assert str(results[0]["visible"]).count("GPU-") == 2


def test_a_killed_gang_frees_all_its_devices(
    run: Callable[..., Process], sessions: Callable[[], dict[str, SessionView]]
) -> None:
    gang = run("gang", "auto", 3, 1_000_000)
    assert [gang.line(), gang.line()] == ["open", "training"]
    singles = [run(f"single{number}", f"cuda:{number}", 1, 50) for number in range(3)]
    for process in singles:
        assert process.line() == "open"
    gang.kill()
    for process in singles:
        process.result()
    assert "gang" not in sessions()


def test_a_gang_trains_on_when_the_broker_is_killed(
    run: Callable[..., Process], settings: Settings
) -> None:
    gang = run("gang", "auto", 3, 300)
    single = run("single", "cuda:0", 1, 300)
    for process in (gang, single):
        assert [process.line(), process.line()] == ["open", "training"]
    with Client.connect(settings, start=False) as client:
        os.kill(client.welcome.pid, signal.SIGKILL)
    results = [gang.result(), single.result()]
    assert [result["iterations"] for result in results] == [300, 300]
    assert overlaps(results) == 0


@pytest.mark.usefixtures("before_cuda")
def test_a_gang_sees_its_devices_and_no_others(
    open_gang: Callable[..., Session], look: Callable[[], Snapshot]
) -> None:
    session = open_gang(devices=2)
    assert os.environ[VISIBLE] == "GPU-a,GPU-b"
    assert session.host_devices == ["cuda:0", "cuda:1"]
    assert sentences.begun(session).startswith(
        "GPU sharing is on for gang; 2 devices: cuda:0, cuda:1 of this host."
    )
    views = {device.name: device.sessions for device in look().devices}
    assert [view.gang for view in views["cuda:0"] + views["cuda:1"]] == [session.host_devices] * 2
    assert views["cuda:2"] == []


@pytest.mark.usefixtures("before_cuda")
def test_a_process_that_had_one_gpu_may_have_several_afterwards(
    open_gang: Callable[..., Session],
) -> None:
    open_gang(devices=1).close()
    assert os.environ[VISIBLE] == "GPU-a"
    assert open_gang(devices=3).host_devices == ["cuda:0", "cuda:1", "cuda:2"]


@pytest.mark.usefixtures("before_cuda")
def test_a_gang_has_only_devices_that_the_process_may_see(
    open_gang: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "2,1")
    assert open_gang(devices=2).host_devices == ["cuda:2", "cuda:1"]
    assert os.environ[VISIBLE] == "GPU-c,GPU-b"


@pytest.mark.parametrize(
    ("device", "there"),
    [("host", "host"), ("auto", "cuda:0, cuda:1, cuda:2"), ("cuda:1", "cuda:1")],
)
def test_more_devices_than_there_are_is_one_sentence(
    open_gang: Callable[..., Session], device: str, there: str
) -> None:
    with pytest.raises(UnknownDevice) as raised:
        open_gang(devices=4, device=device)
    assert str(raised.value) == (
        f"4 devices at once are more than this notebook may use here: {there}"
    )


@pytest.mark.usefixtures("before_cuda")
def test_a_broker_that_knows_no_gangs_is_reported_as_old(
    open_gang: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the field that it does not know, and answers as to all others."""
    answer = Opened("gang", "cuda:0", 16 << 30, 0, "GPU-a")
    with monkeypatch.context() as patched:
        patched.setattr(Client, "ask", lambda *args, **more: answer)
        with pytest.raises(ProtocolError) as raised:
            open_gang(devices=2)
    assert str(raised.value) == OLD_BROKER
