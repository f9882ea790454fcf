"""The service alone: devices that this machine does not have, and time that does not pass."""

from __future__ import annotations

import pytest

from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.protocol import (
    PROTOCOL,
    Demand,
    Error,
    Finish,
    Grant,
    Hello,
    Look,
    Message,
    Open,
    Opened,
    Request,
    SetPolicy,
    Snapshot,
    ToBroker,
    Yield,
)
from jupyter_gpushare.settings import load

GB = 1 << 30
DEVICES = [Device("cuda:0", 16 * GB, "a GPU"), Device("host", 64 * GB, "main memory")]


class Notebook(Peer):
    """A peer that keeps what it is sent."""

    def __init__(self, service: Service, name: str, device: str = "auto") -> None:
        self.uid, self.pid, self.user = 0, 1, "root"
        self.heard: list[Message] = []
        self._service = service
        self.says(Hello(PROTOCOL), 0.0)
        demand = Demand(GB, GB, measured=True)
        self.says(Open(id=name, name=name, device=device, demand=demand), 0.0)

    def says(self, message: ToBroker, now: float) -> None:
        self._service.handle(self, message, now)

    def send(self, *messages: Message) -> None:
        self.heard += messages

    def send_frame(self, frame: bytes) -> None:
        raise AssertionError("only lookers are sent frames")

    def send_with(self, message: Message, descriptor: int) -> None:
        self.heard.append(message)

    def is_alive(self) -> bool:
        return False

    def is_behind(self) -> bool:
        return False

    def heard_of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.heard if isinstance(message, kind)]


@pytest.fixture
def service() -> Service:
    return Service(load({}), DEVICES, started=0.0)


def test_auto_is_the_first_device(service: Service) -> None:
    assert Notebook(service, "a").heard_of(Opened) == [Opened("a", "cuda:0", 16 * GB)]


def test_devices_give_turns_independently(service: Service) -> None:
    first, second = Notebook(service, "a", "cuda:0"), Notebook(service, "b", "cuda:0")
    third = Notebook(service, "c", "host")
    for notebook in (first, second, third):
        notebook.says(Request(1), 1.0)
    assert first.heard_of(Grant)
    assert not second.heard_of(Grant)
    assert third.heard_of(Grant)


def test_an_unknown_device_is_answered_with_those_that_exist(service: Service) -> None:
    (error,) = Notebook(service, "a", "cuda:7").heard_of(Error)
    assert isinstance(error, Error)
    assert error.code == "unknown_device"
    assert "cuda:0, host" in error.message


def test_lanes_are_set_for_one_device_alone(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(SetPolicy(running_lanes=3, device="host"), 1.0)
    notebook.says(Look(), 1.0)
    (snapshot,) = notebook.heard_of(Snapshot)
    assert isinstance(snapshot, Snapshot)
    assert {view.name: view.running_lanes for view in snapshot.devices} == {"cuda:0": 0, "host": 3}


def test_a_turn_is_asked_back_when_its_quantum_is_over_and_not_before(service: Service) -> None:
    first, second = Notebook(service, "a"), Notebook(service, "b")
    first.says(Request(1), 1.0)
    second.says(Request(1), 1.1)
    due = service.next_event(1.1)
    assert due == pytest.approx(1.25)
    service.pass_time(1.2)
    assert not first.heard_of(Yield)
    service.pass_time(1.25)
    assert first.heard_of(Yield) == [Yield(1)]
    first.says(Finish(1), 1.3)
    assert second.heard_of(Grant)


def test_after_a_crash_nobody_is_granted_before_old_holders_had_time_to_come() -> None:
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0)
    waiter = Notebook(service, "waiter")
    waiter.says(Request(1), 9.0)
    assert service.next_event(9.0) == 10.0
    holder = Notebook(service, "holder")
    demand = Demand(GB, GB, measured=True)
    holder.says(Open(id="holder", name="holder", demand=demand, turn=7, holding=True), 9.5)
    service.pass_time(10.0)
    assert not waiter.heard_of(Grant)
    holder.says(Finish(7), 10.5)
    assert waiter.heard_of(Grant)


def test_a_request_withdrawn_before_anybody_is_granted_is_forgotten() -> None:
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0)
    notebook = Notebook(service, "a")
    notebook.says(Request(1), 9.0)
    notebook.says(Finish(1), 9.1)
    service.pass_time(10.0)
    assert not notebook.heard_of(Grant)
