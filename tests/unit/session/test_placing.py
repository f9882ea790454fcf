"""Sessions with one GPU or several, on a host with three that the broker sees. Some things work on
`host` and not on a GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

import pytest
from jupyter_gpushare_kernel.sentences import begun

from jupyter_gpushare.client.session.placement import OLD_BROKER
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import ProtocolError, UnknownDevice
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

from ...conftest import FakeGpus, Look, Opened, Sessions
from ...polling import until
from .test_interrupts import Paged, page_out

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


# --- paged out ------------------------------------------------------------------------------


class Crowded(Paged):
    """Memory of which half comes back until there is `room`."""

    def __init__(self) -> None:
        super().__init__()
        self.room = threading.Event()
        self.is_interrupted = False
        self._bytes = 0

    def page_out(self, directory: str) -> tuple[int, str]:
        self._bytes = 1 << 20
        return super().page_out(directory)

    def page_in(self) -> str:
        if self.is_interrupted:
            self._bytes //= 2
            raise KeyboardInterrupt
        if self.room.wait(0.05):
            self._bytes = 0
            return super().page_in()
        self._bytes //= 2
        return "there is no room"

    def bytes_out(self) -> int:
        return self._bytes


Out = Callable[[str], tuple[Session, Crowded]]


@pytest.fixture
def out(settings: Settings, open_session: Opened) -> Out:
    """Opens a session on that device, whose memory is paged out between two cells."""

    def out(device: str) -> tuple[Session, Crowded]:
        session = open_session("a", device=device)
        session.memory = memory = Crowded()
        session.enter()
        session.boundary()
        session.leave()  # now its persistent memory is known
        page_out(settings, session)
        return session, memory

    return out


@pytest.mark.parametrize(
    ("device", "told"),
    [("host", "there is no room"), ("cuda:0", "there is no room; trying again")],
)
def test_a_cell_of_a_gpu_begins_when_all_is_back_and_one_of_the_host_reads_the_file(
    device: str, told: str, out: Out
) -> None:
    session, memory = out(device)
    sentences: list[str] = []

    def on_trouble(sentence: str) -> None:
        sentences.append(sentence)
        memory.room.set()

    session.on_trouble = on_trouble
    session.cell_begins()
    assert sentences == [told]
    assert session.paged_out_bytes == 0
    assert memory.is_out == (device == "host")


def test_after_an_interrupt_it_is_known_that_memory_of_a_gpu_is_out_and_the_next_cell_has_it(
    out: Out,
) -> None:
    session, memory = out("cuda:0")

    def interrupt(sentence: str) -> None:
        raise KeyboardInterrupt

    session.on_trouble = interrupt
    with pytest.raises(KeyboardInterrupt):
        session.cell_begins()
    assert session.is_out_of_reach
    assert session.paged_out_bytes == 1 << 20  # a part that is in would count as free
    session.cell_ends()
    memory.room.set()
    session.cell_begins()
    assert not session.is_out_of_reach
    assert not memory.is_out


def test_a_turn_on_a_gpu_begins_when_all_is_back(out: Out) -> None:
    """A thread waits between two cells, and its turn was granted before the broker has heard that
    the memory is out."""
    session, memory = out("cuda:0")
    waiting = threading.Thread(target=session.enter)
    waiting.start()
    until(lambda: session._turn.waiting)
    with session._link.lock:
        number = session._turn.number
        session._dispatch.take(m.Grant(number, 0))
        assert session._turn.number > number
    assert not session.holding
    memory.room.set()
    waiting.join()
    assert session.holding
    assert not memory.is_out


def test_sharing_ends_once_memory_of_a_gpu_is_back(out: Out) -> None:
    session, memory = out("cuda:0")
    assert not session.may_close()
    memory.room.set()
    assert session.may_close()
    assert not memory.is_out


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_an_interrupt_of_what_a_message_asks_for_ends_the_connection(device: str, out: Out) -> None:
    """The broker assumes that the request was carried out, and hears from the next connection that
    it was not."""
    session, memory = out(device)
    memory.is_interrupted = True
    with session._link.lock:  # so that the keeper does not connect again
        with pytest.raises(KeyboardInterrupt):
            session._dispatch.take(m.PageIn())
        assert session._link.client is None
        assert session.paged_out_bytes == 1 << 20  # a part that is in would count as free
    memory.is_interrupted = False
    memory.room.set()
    session.cell_begins()
    assert not memory.is_out
