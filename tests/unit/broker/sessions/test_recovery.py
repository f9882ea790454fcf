"""A new broker recovers the sessions that had a turn when the last one ended."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpushare.broker.grants.recovery import HeldTurn, RecoveryJournal
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import ToBroker
from jupyter_gpushare.wire.handoff_slot import HandoffSlot
from jupyter_gpushare.wire.snapshot import SessionView

from ..listener import KEY, MIB, Speaker

ADA, BOB, EVE = "handoff_slot-a", "handoff_slot-b", "handoff_slot-e"
ADAS, BOBS = HeldTurn("ada", 1, ADA), HeldTurn("bob", 2, BOB)
SLOTS = {"ada": ADA, "bob": BOB, "eve": EVE}
HOST = Device("host", 100 * MIB, "main memory")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "roll", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


# --- the file -----------------------------------------------------------------------------------


def test_a_holder_that_has_ended_is_not_waited_for(file: int) -> None:
    handoff_slot = HandoffSlot()
    here, unseen = HeldTurn("ada", 1, handoff_slot.name), HeldTurn("ada", 1, "")
    RecoveryJournal(file).note({here, BOBS, unseen})
    journal = RecoveryJournal(file)
    journal.drop_ended()
    assert journal.missing == {here}
    handoff_slot.close()
    journal.drop_ended()
    assert journal.missing == set()


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\nada\n", b"1 2\n", b"\xff\0\n", b"a" * 200, b"a b c\n"]
)
def test_a_file_of_another_kind_makes_no_session_wait(file: int, text: bytes) -> None:
    os.write(file, text)
    assert RecoveryJournal(file).missing == set()


def test_a_full_disk_is_reported_once_and_costs_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    with open("/dev/full", "r+b", buffering=0) as full, caplog.at_level(logging.WARNING):
        journal = RecoveryJournal()
        journal._file = full.fileno()
        journal.note({ADAS})
        journal.note({BOBS})
    (record,) = caplog.records
    assert "cannot know who has turns: [Errno 28] No space left on device" in record.message


# --- the broker after a restart -------------------------------------------------------------------


class Host:
    """A sequence of brokers with one file, and the open handoff slots."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.now = 0.0
        self.here = {*SLOTS.values()}
        self.settings = load({}, recovery_seconds=1.0, lease_seconds=20.0)
        self.start()

    def start(self, grants_from: float = 0.0) -> None:
        journal = RecoveryJournal(self._file, self.here.__contains__)
        self.service = Service(
            self.settings, [HOST], started=0.0, grants_from=grants_from, journal=journal
        )

    def restart(self) -> None:
        self.start(self.now + self.settings.recovery_seconds)

    def pass_time(self, seconds: float) -> None:
        """Run the service as an endpoint does: with its alarms, and ticks."""
        end = self.now + seconds
        while (due := self.service.next_event(self.now)) is not None and due < end:
            assert due > self.now
            self.now = due
            self.service.pass_time(due)
        self.now = end
        self.service.pass_time(end)
        self.service.tick(end)

    def look(self, name: str) -> SessionView:
        sessions = self.service.snapshot(self.now).devices[0].sessions
        return next(view for view in sessions if view.name == name)


class Notebook(Speaker):
    def __init__(self, host: Host, name: str, holding: bool = False) -> None:
        self._host = host
        super().__init__(host.service, "ada")
        slot, demand = SLOTS[name], Demand(MIB, MIB, measured=True)
        opening = m.Open(name, name, handoff_slot=slot, key=KEY, demand=demand)
        self.says(replace(opening, turn=int(holding), holding=holding))

    def says(self, message: ToBroker, now: float = 0.0) -> Notebook:
        return super().says(message, self._host.now)

    @property
    def has_a_turn(self) -> bool:
        return bool(self.heard_of(m.Grant))


@pytest.fixture
def host(file: int) -> Host:
    """A host on which Ada had the turn, Bob was to have the next one by direct handoff, and Eve
    waited."""
    host = Host(file)
    for name in SLOTS:
        Notebook(host, name).says(m.Request(1))
    host.restart()
    return host


def test_no_session_has_a_turn_before_the_holder_has_come_back(host: Host) -> None:
    bob = Notebook(host, "bob").says(m.Request(1))
    host.pass_time(5.0)
    assert not bob.has_a_turn
    view = host.look("bob")
    assert (view.state, view.waiting_seconds, view.expected_wait_seconds) == ("waiting", 5.0, None)
    assert view.reason.startswith("waits until the notebooks that had turns before")
    ada = Notebook(host, "ada", holding=True)
    host.pass_time(0.1)
    assert host.look("ada").state == "running"
    assert not bob.has_a_turn
    ada.says(m.Finish(1))
    assert bob.has_a_turn


def test_a_holder_that_has_ended_or_comes_back_without_its_turn_is_not_waited_for(
    host: Host,
) -> None:
    bob = Notebook(host, "bob").says(m.Request(1))
    host.pass_time(2.0)
    host.here.remove(ADA)
    host.pass_time(0.1)
    assert bob.has_a_turn
    host.restart()
    eve = Notebook(host, "eve").says(m.Request(1))
    host.pass_time(2.0)
    assert not eve.has_a_turn
    Notebook(host, "bob")
    host.pass_time(0.1)
    assert eve.has_a_turn


def test_a_holder_that_is_away_for_longer_than_a_lease_is_overdue_and_has_its_own_lane(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    bob = Notebook(host, "bob").says(m.Request(1))
    host.pass_time(20.9)
    assert not bob.has_a_turn
    with caplog.at_level(logging.WARNING):
        host.pass_time(0.2)
    assert bob.has_a_turn
    assert [record.message for record in caplog.records] == [
        "the session ada had turn 1, and is away"
    ]
    Notebook(host, "ada", holding=True)
    ada, bobs = host.look("ada"), host.look("bob")
    assert (ada.state, bobs.state) == ("running", "running")
    assert ada.lane != bobs.lane


def test_it_is_waited_for_by_the_broker_after_the_next_too(host: Host) -> None:
    Notebook(host, "bob").says(m.Request(1))
    host.pass_time(0.5)
    host.restart()
    eve = Notebook(host, "eve").says(m.Request(1))
    host.pass_time(3.0)
    assert not eve.has_a_turn
    Notebook(host, "ada").says(m.Close())
    host.pass_time(0.1)
    assert eve.has_a_turn
