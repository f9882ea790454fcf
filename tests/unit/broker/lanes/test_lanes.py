"""The memory behind lanes: which session gets which piece, and when a piece is emptied or
abandoned."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.grants.lane_memory import Lanes
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.errors import ConnectionLost, NotPermitted
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.handoff_slot import write_handoff_token

from ....makers import maker
from ..conftest import Forks
from ..listener import KEY, MIB
from ..listener import LaneUser as Notebook
from ..processes import NOBODY, needs_root, no_descriptors

CAPACITY = 64 * MIB
SIZE = 2 * MIB
DEVICES = [Device("host", CAPACITY, "main memory", partial(HostLaneMemory, CAPACITY))]
Notebooks = Callable[..., Notebook]


def fill(descriptor: int, size: int = SIZE, byte: bytes = b"\xff") -> None:
    """Write through a mapping, as a session does."""
    with mmap.mmap(descriptor, size) as pages:
        pages[:] = byte * size


def has_only(descriptor: int, byte: bytes, size: int = SIZE) -> bool:
    return os.pread(descriptor, size, 0) == byte * size


def resident(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


# --- the pieces of a device's lanes ---------------------------------------------------------------


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(partial(HostLaneMemory, CAPACITY))


def test_a_turn_of_another_domain_empties_the_piece_and_that_lane_s_alone(lanes: Lanes) -> None:
    ours, apart = lanes.use(1, "ada"), lanes.use(2, "ada")
    for piece in (ours, apart):
        fill(piece.memory.descriptor)
    theirs = lanes.use(1, "bob")
    assert (resident(ours.memory.descriptor), resident(apart.memory.descriptor)) == (0, SIZE)
    assert has_only(theirs.memory.descriptor, b"\0")
    fill(theirs.memory.descriptor)
    assert lanes.use(1, "ada") is ours
    assert has_only(ours.memory.descriptor, b"\0")
    assert resident(theirs.memory.descriptor) == 0


def test_a_lane_that_closes_gives_all_back_and_its_number_is_never_used_again(lanes: Lanes) -> None:
    gone, kept = lanes.use(1, "ada"), lanes.use(2, "ada")
    fill(gone.memory.descriptor)
    lanes.follow({1: 0, 2: SIZE}.__getitem__)
    assert resident(gone.memory.descriptor) == 0
    assert lanes.use(1, "ada").number not in (gone.number, kept.number)
    assert lanes.use(2, "ada") is kept


def test_a_domain_whose_sessions_have_gone_keeps_no_piece_that_was_emptied(lanes: Lanes) -> None:
    gone = lanes.use(1, "ada")
    lanes.close_emptied({"bob"})
    assert lanes.use(1, "ada") is gone  # it has contents, which the next domain's turn erases
    kept = lanes.use(1, "bob")
    lanes.close_emptied({"bob"})
    assert (lanes.of("ada"), lanes.of("bob")) == ([], [1])
    assert lanes.use(1, "bob") is kept


def test_an_abandoned_piece_is_left_as_it_is(lanes: Lanes) -> None:
    left = lanes.use(1, "ada")
    fill(left.memory.descriptor)
    lanes.abandon(1, "ada")
    lanes.abandon(1, "ada")
    lanes.use(1, "bob")
    lanes.follow(lambda lane: 0)
    assert has_only(left.memory.descriptor, b"\xff")
    assert lanes.use(1, "ada").number != left.number


# --- messages of the service about them -----------------------------------------------------------


@pytest.fixture
def handed(service: Service, notebook: Notebooks) -> tuple[Notebook, Notebook, Notebook]:
    """Three sessions: the first has the turn, the second knows the memory and has a direct handoff
    for the next turn, and the idle third one determines the size of their lane."""
    first, second, third = notebook("first"), notebook("second"), notebook("third", SIZE)
    for each in (second, first):
        each.says(m.Request(1)).says(m.Finish(1))
    first.says(m.Request(2))
    second.says(m.Request(2))
    service.pass_time(1.0)
    handoff_token = first.last(m.Yield).successor.handoff_token
    assert handoff_token == write_handoff_token(
        KEY, m.Grant(2, 1, SIZE, second.last(m.Grant).memory)
    )
    return first, second, third


def test_memory_promised_by_a_direct_handoff_stays_until_the_turn_is_over(
    service: Service, handed: tuple[Notebook, Notebook, Notebook]
) -> None:
    """The successor computes before the broker knows this, in a lane that has shrunk meanwhile."""
    first, second, third = handed
    third.says(m.Close(), 1.1)
    fill(second.descriptor)
    service.tick(1.2)
    first.says(m.Finish(2), 1.3)
    assert second.last(m.Grant).bytes == MIB
    service.tick(1.4)
    assert has_only(second.descriptor, b"\xff")
    second.says(m.Finish(2), 1.5)
    service.tick(1.6)
    assert resident(second.descriptor) == MIB


def test_a_successor_that_is_lost_leaves_the_piece_to_itself(
    handed: tuple[Notebook, Notebook, Notebook], service: Service
) -> None:
    """The lost successor may compute there, although the broker has not heard of the direct
    handoff."""
    first, second, third = handed
    third.says(m.Request(1), 1.1)
    service.lost(second, 1.2)
    first.says(m.Finish(2), 1.3)
    assert third.last(m.Grant).memory not in (0, second.last(m.Grant).memory)


def test_a_session_that_opens_again_in_its_turn_leaves_the_piece_to_itself(
    notebook: Notebooks,
) -> None:
    """The broker may hear of the new connection before the end of the old one. With several lanes
    the neighbour then gets the old lane at once."""
    first, second = notebook("first"), notebook("second")
    first.says(m.SetPolicy(running_lanes=2)).says(m.Request(1))
    used = first.last(m.Grant).memory
    first.opens(turn=1, holding=True)
    second.says(m.Request(1))
    first.says(m.Finish(1)).says(m.Request(2))
    assert used not in (first.last(m.Grant).memory, second.last(m.Grant).memory)


def test_sessions_without_a_turn_release_a_piece_that_was_left(
    service: Service, notebook: Notebooks
) -> None:
    """Otherwise the system would free the memory only at their next turn, which may be far off."""
    idle, resting, lost = notebook("idle"), notebook("resting"), notebook("lost")
    for each in (idle, resting):
        each.says(m.Request(1)).says(m.Finish(1))
    resting.says(m.Rests(0))
    lost.says(m.Request(1))
    left = lost.last(m.Grant).memory
    service.tick(0.1)
    service.lost(lost, 0.2)
    service.tick(0.3)
    service.tick(0.4)
    assert idle.heard_of(m.Trim) == resting.heard_of(m.Trim) == [m.Trim(left, 0)]
    idle.says(m.Request(2), 0.5)
    assert idle.last(m.Grant).memory not in (0, left)
    assert resident(idle.descriptor) == 0
    fill(idle.descriptor)
    service.tick(0.6)
    assert idle.heard_of(m.Trim) == [m.Trim(left, 0)]


def test_a_holder_releases_a_piece_that_was_left_once_its_turn_is_over(
    service: Service, notebook: Notebooks
) -> None:
    ours = notebook("ours").says(m.Request(1))
    ours.opens(turn=1, holding=True)
    service.tick(0.1)
    assert ours.heard_of(m.Trim) == []
    ours.says(m.Finish(1), 0.2)
    service.tick(0.3)
    assert ours.heard_of(m.Trim) == [m.Trim(ours.last(m.Grant).memory, 0)]


@pytest.mark.parametrize(
    "give_back", [lambda ours: ours.says(m.Request(2)), lambda ours: ours.opens(turn=2)]
)
def test_messages_about_a_turn_that_is_over_empty_no_session_s_piece(
    notebook: Notebooks, give_back: Callable[[Notebook], None]
) -> None:
    """The next Request or Open replaces a Finish that was lost, for example by an interrupt."""
    ours, theirs = notebook("ours"), notebook("theirs", user="bob")
    ours.says(m.Request(1))
    theirs.says(m.Request(1))
    give_back(ours)
    fill(theirs.descriptor, MIB)
    ours.says(m.Report(1, Demand(0, SIZE, measured=True)))  # holders learn that their lane grows
    assert theirs.last(m.Grant).bytes == SIZE
    assert has_only(theirs.descriptor, b"\xff", MIB)


# --- over the socket of a real broker -------------------------------------------------------------


class Member:
    """A session in this process: a connection, and the last granted lane."""

    def __init__(self, settings: Settings, name: str, **fields: Any) -> None:
        self.client = Client.connect(settings, "tests")
        demand = Demand(0, SIZE, measured=True)
        self.client.ask(m.Open(id=name, name=name, device="host", demand=demand, **fields))
        self.turn = int(fields.get("turn", 0))

    def ask(self) -> None:
        self.turn += 1
        self.client.send(m.Request(self.turn))

    def await_grant(self) -> m.Grant:
        """Return the grant of the turn that was requested last. Other grants may be news of the
        turn before."""
        while True:
            message = self.client.receive()
            assert not isinstance(message, m.Error)
            if isinstance(message, m.Grant) and message.turn == self.turn:
                return message

    def take(self) -> m.Grant:
        self.ask()
        return self.await_grant()

    def finish(self) -> None:
        self.client.send(m.Finish(self.turn))

    @property
    def descriptor(self) -> int:
        return self.client.lane_memory.descriptor

    @property
    def file(self) -> int:
        return os.fstat(self.descriptor).st_ino


Join = Callable[..., Member]


@pytest.fixture
def join(settings: Settings) -> Iterator[Join]:
    with maker(partial(Member, settings), lambda member: member.client.close()) as join:
        yield join


def test_the_descriptor_comes_with_the_first_grant_and_not_again(join: Join) -> None:
    member = join("a")
    assert member.descriptor == -1
    grant = member.take()
    assert (grant.bytes, grant.memory > 0) == (SIZE, True)
    first = member.client.lane_memory
    for _ in range(3):
        member.finish()
        assert member.take().memory == grant.memory
    assert member.client.lane_memory is first
    assert not member.client._descriptors


def test_a_session_that_cannot_be_given_the_memory_comes_again_and_costs_the_others_nothing(
    join: Join, broker_pid: int
) -> None:
    """The broker has no descriptor left to send the memory. It cannot check either whether the
    other process still computes, so it leaves the piece to that process."""
    first, second = join("first"), join("second")
    first.take()
    second.ask()
    second.client.look()  # so that it waits by now
    with no_descriptors(broker_pid, 0):
        first.finish()
        with pytest.raises(ConnectionLost):
            second.await_grant()
        first.take()  # outside of the lane
    first.finish()
    assert first.take().memory
    first.finish()
    assert join("second", turn=1, waiting=True).await_grant().memory


def play_a_turn_for_each_word(pair: socket.socket, settings: Settings) -> None:
    """Take a turn for each word: report the content of the lane, and fill it; the next word ends
    the turn."""
    member = Member(settings, "theirs")
    while pair.recv(64):
        grant = member.take()
        is_fresh = has_only(member.descriptor, b"\0", grant.bytes)
        fill(member.descriptor, grant.bytes, b"\xaa")
        pair.send(json.dumps([grant.memory, member.file, is_fresh]).encode())
        pair.recv(64)
        kept = has_only(member.descriptor, b"\xaa")
        member.finish()
        pair.send(json.dumps(kept).encode())


@needs_root
@pytest.mark.usefixtures("open_to_all")
def test_another_user_has_a_memory_of_its_own_and_finds_nothing_in_it(
    settings: Settings, join: Join, child: Forks
) -> None:
    ours = join("ours")
    theirs = child(partial(play_a_turn_for_each_word, settings=settings), NOBODY)
    number = ours.take().memory
    for _ in range(3):
        fill(ours.descriptor)
        theirs.says("take")
        ours.finish()
        their_number, their_file, is_fresh = theirs.hears()
        assert is_fresh
        assert their_number != number
        assert their_file != ours.file
        assert resident(ours.descriptor) == 0, "what we wrote is gone while they have the turn"
        theirs.says("finish")
        assert theirs.hears(), "nobody else writes into it"
        assert ours.take().memory == number
        assert has_only(ours.descriptor, b"\0")


def ask_for_the_session_of_another(pair: socket.socket, settings: Settings) -> None:
    with Client.connect(settings, start=False) as client:
        broker = client.welcome.pid
        requests = [
            m.Open(id="ours", name="x", turn=1, holding=True),
            m.Open(id="ours", name="x", turn=1, waiting=True),
            m.Request(1),
        ]
        answers = []
        for request in requests:
            client.send(request)
            answers.append(getattr(client.receive(), "code", "accepted"))
        has_descriptor = client.lane_memory.descriptor >= 0 or bool(client._descriptors)
    try:
        os.listdir(f"/proc/{broker}/fd")
        answers.append("open")
    except PermissionError:
        answers.append("closed")
    pair.send(json.dumps([answers, has_descriptor]).encode())


@needs_root
@pytest.mark.usefixtures("open_to_all")
def test_no_user_gets_the_memory_of_another_user_s_session(
    settings: Settings, join: Join, child: Forks
) -> None:
    ours = join("ours")
    ours.take()
    theirs = child(partial(ask_for_the_session_of_another, settings=settings), NOBODY)
    answers, has_descriptor = theirs.hears()
    assert answers == [NotPermitted.code, NotPermitted.code, "unknown_session", "closed"]
    assert not has_descriptor
    fill(ours.descriptor)
    assert has_only(ours.descriptor, b"\xff")


def test_no_session_can_change_the_size_of_the_memory_that_others_map(join: Join) -> None:
    member = join("a")
    member.take()
    size = os.fstat(member.descriptor).st_size
    assert size >= SIZE
    for wrong in (0, size - mmap.PAGESIZE, size + mmap.PAGESIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(member.descriptor, wrong)
    with pytest.raises(PermissionError):
        fcntl.fcntl(member.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(member.descriptor).st_size == size


def test_a_living_process_without_its_connection_keeps_the_piece_it_may_write_to(
    join: Join,
) -> None:
    holder, other = join("holder"), join("other")
    number = other.take().memory
    other.finish()
    assert holder.take().memory == number
    fill(holder.descriptor)
    left = os.dup(holder.descriptor)
    other.ask()
    holder.client.close()
    assert other.await_grant().memory not in (0, number)
    fill(other.descriptor, byte=b"\xaa")
    assert has_only(left, b"\xff")
    os.close(left)
