"""The chunks of a GPU's lane: sessions make them, the broker keeps them, and both release them.

Descriptors of files stand for chunks, since only a GPU's driver uses their contents.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection
from jupyter_gpushare.broker.transport.server import Endpoint
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import chunks
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.chunks import KeptChunks
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.fd_channel import AT_ONCE, Channel
from jupyter_gpushare.wire.framing import encode

from ..listener import GIB, KEY, MIB, Speaker
from ..processes import open_files

CHUNK = 2 * MIB
DEVICES = [
    Device(name, GIB, "a GPU", partial(KeptChunks, CHUNK), CHUNK) for name in ("cuda:0", "cuda:1")
]


def made(count: int) -> list[int]:
    return [os.memfd_create("chunk", os.MFD_CLOEXEC) for _ in range(count)]


def file_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def open_descriptors() -> set[tuple[str, str]]:
    """Return each open descriptor with its file.

    Garbage of earlier tests is collected first, since it could close descriptors at any time.
    """
    gc.collect()
    return set(open_files(os.getpid()).items())


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert not open_descriptors() - before


# --- the channel ----------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.system
def test_more_chunks_than_go_into_one_batch_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    descriptors = made(600)
    ends[0].send(3, 7, descriptors)
    batches = list(ends[1].received())
    assert [batch.memory for batch in batches] == [3] * len(batches)
    assert batches[0].first == 7
    for batch, following in itertools.pairwise(batches):
        assert batch.first + len(batch.descriptors) == following.first
    received = [descriptor for batch in batches for descriptor in batch.descriptors]
    assert list(map(file_of, received)) == list(map(file_of, descriptors))
    chunks.close([*received, *descriptors])


def test_a_message_that_is_no_batch_is_closed_and_the_next_one_arrives(
    ends: tuple[Channel, Channel],
) -> None:
    one = made(1)
    with socket.socket(fileno=os.dup(ends[0].fileno())) as raw:
        socket.send_fds(raw, [b"garbage"], one)
        socket.send_fds(raw, [b'{"memory": "a", "first": 0}'], one)
    ends[0].send(1, 0, one)
    (batch,) = ends[1].received()
    assert file_of(batch.descriptors[0]) == file_of(one[0])
    chunks.close([*batch.descriptors, *one])


def test_descriptors_without_any_label_are_closed(ends: tuple[Channel, Channel]) -> None:
    one = made(1)
    with socket.socket(fileno=os.dup(ends[0].fileno())) as raw:
        socket.send_fds(raw, [b""], one)
    assert list(ends[1].received()) == []
    chunks.close(one)


def test_a_peer_that_sends_without_end_is_not_read_without_end(
    ends: tuple[Channel, Channel],
) -> None:
    one = made(1)
    ends[0].send(1, 0, one)
    read = 0
    for batch in ends[1].received():
        chunks.close(batch.descriptors)
        ends[0].send(1, 0, one)
        if (read := read + 1) > 10 * AT_ONCE:
            break
    chunks.close(one)
    assert read == AT_ONCE


def test_a_batch_before_its_grant_waits_and_an_old_one_is_closed(
    ends: tuple[Channel, Channel],
) -> None:
    descriptors = made(3)
    for memory in (2, 1, 3):
        ends[0].send(memory, 0, descriptors)
    (batch,) = ends[1].received_for(2)
    assert batch.memory == 2
    (later,) = ends[1].received_for(3)
    ends[0].send(4, 0, descriptors)
    assert list(ends[1].received_for(3)) == []
    chunks.close([*batch.descriptors, *later.descriptors, *descriptors])


@pytest.mark.parametrize(
    ("capacity", "size"),
    [(1, CHUNK), (8 * GIB, CHUNK), (8 * GIB + 1, 2 * CHUNK), (80 * GIB, 32 * MIB)],
)
def test_chunks_are_as_small_as_their_number_allows(capacity: int, size: int) -> None:
    assert chunks.chunk_bytes(capacity) == size
    assert chunks.count(capacity, size) <= chunks.MOST


def test_a_client_that_closes_keeps_no_descriptor_that_came_with_a_message_it_has_not_taken() -> (
    None
):
    ours, theirs = socket.socketpair()
    client, memory = Client(ours), made(1)
    socket.send_fds(theirs, [encode(m.Done()) + encode(m.Grant(1, 1, CHUNK, 1))], memory)
    assert client.receive() == m.Done()
    client.close()
    theirs.close()
    chunks.close(memory)


# --- the broker's chunks --------------------------------------------------------------------------


class Notebook(Speaker):
    """A peer in this process, with a real channel. It makes missing chunks of its lane."""

    is_owner = True

    def __init__(
        self, service: Service, name: str, ephemeral: int, device: str = "cuda:0", user: str = "ada"
    ) -> None:
        super().__init__(service, user)
        self.uid = self.pid = 0
        self.own: list[int] = []  # chunks, in their order
        self.theirs: Channel | None = None
        demand = Demand(0, ephemeral, measured=True)
        self.says(m.Open(name, name, device, demand=demand, handoff_slot=name, key=KEY))

    def send(self, *messages: m.Message) -> None:
        for message in messages:
            self.heard.append(message)
            if isinstance(message, m.Trim):
                self.keep(chunks.count(message.bytes, CHUNK))

    def send_with(self, message: m.Message, descriptor: int) -> None:
        self.send(message)
        self.theirs = Channel(socket.socket(fileno=os.dup(descriptor)))

    def is_alive(self) -> bool:
        return True

    def take(self) -> None:
        assert self.theirs is not None
        for batch in self.theirs.received():
            self.keep(batch.first)
            self.own += batch.descriptors

    def begins(self, turn: int) -> None:
        self.says(m.Request(turn))
        self.make()

    def keep(self, count: int) -> None:
        chunks.close(self.own[count:])
        del self.own[count:]

    def make(self) -> None:
        """Make the chunks of the Grant that the peer lacks; return their number."""
        self.take()
        grant = self.last(m.Grant)
        first = len(self.own)
        self.own += made(chunks.count(grant.bytes, CHUNK) - first)
        self.give(grant.memory, first, self.own[first:])

    def give(self, memory: int, first: int, descriptors: list[int]) -> None:
        assert self.theirs is not None
        assert self.channel is not None
        self.theirs.send(memory, first, descriptors)
        for batch in self.channel.received():
            self._service.take_chunks(self, batch)

    def end(self) -> None:
        self.says(m.Close())
        self._service.tick(100.0)
        self.keep(0)
        for channel in (self.channel, self.theirs):
            if channel is not None:
                channel.close()


Notebooks = Callable[..., Notebook]


@pytest.mark.system
def test_a_lane_that_shrinks_is_released_on_its_own_gpu_alone(
    service: Service, notebook: Notebooks
) -> None:
    here, there = notebook("here", 8 * CHUNK), notebook("there", 8 * CHUNK, "cuda:1")
    for each in (here, there):
        each.begins(1)
    here.says(m.Finish(1)).says(m.Report(0, Demand(0, 2 * CHUNK, measured=True)))
    service.tick(1.0)
    assert (len(here.own), len(there.own)) == (2, 8)


def test_a_session_that_rests_releases_what_its_lane_does_not_need_any_more(
    service: Service, notebook: Notebooks
) -> None:
    resting = notebook("resting", 8 * CHUNK)
    notebook("smaller", 2 * CHUNK)
    resting.begins(1)
    resting.says(m.Finish(1)).says(m.Rests(0))
    service.tick(1.0)
    assert len(resting.own) == 2


@pytest.mark.system
def test_chunks_that_were_not_asked_for_are_not_kept(notebook: Notebooks) -> None:
    holder, other = notebook("holder", 2 * CHUNK), notebook("other", 2 * CHUNK)
    holder.begins(1)
    memory, before = holder.last(m.Grant).memory, open_descriptors()
    extra = made(3)
    for peer, number, first in ((holder, memory, 2), (other, memory, 2), (holder, 99, 0)):
        peer.give(number, first, extra)
    chunks.close(extra)
    assert not open_descriptors() - before


def test_a_direct_handoff_goes_only_to_a_session_with_all_chunks(
    service: Service, notebook: Notebooks
) -> None:
    first, second = notebook("first", 2 * CHUNK), notebook("second", CHUNK)
    first.says(m.Request(1))
    second.says(m.Request(1))
    service.pass_time(1.0)
    assert first.last(m.Yield).successor is None  # it has never had the lane
    first.make()
    first.says(m.Finish(1))
    second.take()
    second.says(m.Finish(1))
    first.says(m.Request(2))
    second.says(m.Request(2))
    service.pass_time(2.0)
    assert first.last(m.Yield).successor is not None


def test_a_direct_handoff_does_not_go_to_a_session_that_has_released_the_only_chunk(
    service: Service, notebook: Notebooks
) -> None:
    first, second = notebook("first", CHUNK), notebook("second", CHUNK)
    stranger = notebook("stranger", CHUNK, user="eve")
    service.handle(first, m.SetPolicy("fifo", running_lanes=1), 0.0)
    for turn, each in ((1, first), (1, second), (1, stranger), (2, first)):
        each.begins(turn)
        if turn == 1:
            each.says(m.Finish(1))
    second.says(m.Request(2))
    first.says(m.Preempt("first"))
    assert first.last(m.Grant).memory == second.last(m.Grant).memory
    assert first.last(m.Yield) == m.Yield(2, None, until_cell_ends=True)


class Session:
    """The client's ends of a connection to a broker in this event loop, and of the channel."""

    async def open(self, service: Service) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket, ours = socket.socketpair()
        self.socket.setblocking(False)
        endpoint = Endpoint(load({}, messages_per_second=1), service)
        _, self.connection = await self._loop.connect_accepted_socket(
            lambda: Connection(endpoint), ours
        )
        for message in (m.Hello(m.PROTOCOL), m.Open(id="a", name="a", device="cuda:0")):
            self.socket.send(encode(message))
        while self.connection.channel is None:
            await asyncio.sleep(0)
        _, (descriptor,), _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
        self.channel = Channel(socket.socket(fileno=descriptor))

    def is_attended(self) -> bool:
        assert self.connection.channel is not None
        readers = self._loop._selector.get_map()  # type: ignore[attr-defined]
        return self.connection.channel.fileno() in readers

    async def end(self) -> None:
        self.socket.close()
        self.channel.close()
        while self.connection.channel is not None:
            await asyncio.sleep(0)


async def close_the_channel(session: Session) -> None:
    assert session.is_attended()
    session.channel.close()
    while session.is_attended():
        await asyncio.sleep(0)


async def send_chunks_until_the_end(session: Session) -> None:
    one = made(1)
    with contextlib.suppress(BrokenPipeError):
        while session.connection.channel is not None:
            session.channel.send(1, 0, one)
            await asyncio.sleep(0)
    chunks.close(one)


@pytest.mark.parametrize("act", [close_the_channel, send_chunks_until_the_end])
def test_a_session_that_closes_its_channel_or_sends_without_end_is_not_attended_for_ever(
    service: Service, act: Callable[[Session], Awaitable[None]]
) -> None:
    async def run() -> None:
        session = Session()
        await session.open(service)
        await act(session)
        await session.end()

    asyncio.run(asyncio.wait_for(run(), 60))
