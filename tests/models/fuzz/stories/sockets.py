"""Target `connection`: a story told over real sockets to the real endpoint, descriptors included.

Users authenticate by tickets, like kernels of a hub. Time is the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from typing import Any

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection
from jupyter_gpushare.broker.transport.server import Endpoint
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import chunks
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.fd_channel import Channel
from jupyter_gpushare.wire.framing import (
    MAX_SNAPSHOT_BYTES,
    Frames,
    decode_from_broker,
    encode,
    frame,
)
from jupyter_gpushare.wire.snapshot import Snapshot

from . import neighbour, story
from .conversation import ACCOUNTS, RULEBOOK, Client, devices
from .story import Step

SETTINGS = Settings(hub_api_url="http://127.0.0.1:9/hub/api", messages_per_second=50)
MOST_SECONDS = 30.0  # for an answer to the neighbour: then the broker is stuck
RECEIVE_BYTES = 1 << 20
DESCRIPTORS = 16


class End:
    """The client's end of a connection. It reads messages and descriptors."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.ours.setblocking(False)
        self.heard: list[m.Message] = []
        self.channel: Channel | None = None
        self.is_over = False
        self._frames = Frames(MAX_SNAPSHOT_BYTES)

    def say(self, data: bytes) -> None:
        """Send as many bytes as possible: the broker may not read from a client that does not
        read."""
        with contextlib.suppress(OSError):
            self.ours.send(data)

    def read(self) -> bytes:
        """Read all that has come by now; the messages go into `heard`."""
        came = b""
        with contextlib.suppress(BlockingIOError):  # nothing more
            while not self.is_over:
                data, descriptors = self._receive()
                self.is_over = not data
                came += data
                self._hear(data, descriptors)
        return came

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return an empty message if the other end is closed. Raises BlockingIOError if there is
        nothing to read."""
        try:
            return socket.recv_fds(self.ours, RECEIVE_BYTES, DESCRIPTORS)[:2]
        except ConnectionError:
            return b"", []

    def _hear(self, data: bytes, descriptors: list[int]) -> None:
        for message in map(decode_from_broker, self._frames.feed(data)):
            self.heard.append(message)
            if isinstance(message, m.Opened) and message.chunk_bytes and self.channel is None:
                self.channel = Channel(socket.socket(fileno=descriptors.pop(0)))
        chunks.close(descriptors)

    def give(self, memory: int, first: int, count: int) -> None:
        """Send descriptors as chunks."""
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send(memory, first, [0] * count)

    def close(self) -> None:
        self.ours.close()
        if self.channel is not None:
            for batch in self.channel.received():
                chunks.close(batch.descriptors)
            self.channel.close()


class Listening:
    """An endpoint in this thread's loop, and a neighbour that has a turn on the device `host`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, about: self.failures.append(about))
        self.service = Service(
            SETTINGS,
            devices(),
            started=0.0,
            rulebook=RULEBOOK,
            accounts=ACCOUNTS,
        )
        self.endpoint = Endpoint(SETTINGS, self.service)
        self.ends: dict[str, End] = {}

    async def begin(self) -> None:
        self.neighbour = await self.connect(neighbour.NAME)
        self.neighbour.say(encode(neighbour.OPEN) + encode(m.Request(1)))
        await self.until_heard(m.Grant)
        self.neighbour.heard.clear()

    async def connect(self, user: str) -> End:
        """Connect with a ticket that a server of that user has registered."""
        end = End()
        await self.loop.connect_accepted_socket(lambda: Connection(self.endpoint), end.theirs)
        ticket = os.urandom(8).hex()
        giver = Client(user, user == "admin")
        giver.may_issue_tokens = True
        digest = hashlib.sha256(ticket.encode()).hexdigest()
        self.service.tickets.add(digest, giver, self.loop.time())
        end.say(encode(m.Hello(m.PROTOCOL, ticket=ticket)))
        return end

    # --- the steps of a story -------------------------------------------------------------------

    async def take(self, step: Step) -> None:
        if not step.who:
            await asyncio.sleep(0)
            return
        if step.who not in self.ends or self.ends[step.who].is_over:
            self._leave(step.who)
            self.ends[step.who] = await self.connect(story.user_of(step.who))
        end = self.ends[step.who]
        if step.verb == "leaves":
            self._leave(step.who)
        elif step.verb == "chunks":
            memory, first, count = map(int, story.numbers(step.rest, 3))
            end.give(memory, first, max(0, min(count, 40)))
        elif step.verb == "bytes":
            end.say(story.raw(step.rest))
        elif (body := story.body(step)) is not None:
            end.say(frame(body))
        await asyncio.sleep(0)
        self._read(step.who)

    def _read(self, who: str) -> None:
        """Bob never reads."""
        if who != "bob" and (end := self.ends.get(who)) is not None:
            neighbour.check_others_heard(end.read(), who == "admin")

    def _leave(self, who: str) -> None:
        if who in self.ends:
            self.ends.pop(who).close()

    # --- invariants -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that the broker still answers the neighbour, and that no unexpected error has
        occurred."""
        self.neighbour.say(encode(m.Look()))
        snapshot = await self.until_heard(Snapshot)
        assert not self.failures, self.failures
        assert neighbour.view(snapshot).state in neighbour.STILL
        *others, last = self.neighbour.heard
        assert last is snapshot
        neighbour.check_heard(others)
        self.neighbour.heard.clear()
        for who in [*self.ends]:
            self._read(who)
            self._check_end(who)

    def _check_end(self, who: str) -> None:
        """Check that a disconnected client has been told why, if it reads."""
        end = self.ends[who]
        if end.is_over:
            assert [isinstance(one, m.Error) for one in end.heard[-1:]] == [True], (
                f"{who} was thrown out without a word"
            )
            self._leave(who)

    async def until_heard(self, kind: type[m.Message]) -> Any:
        end = self.loop.time() + MOST_SECONDS
        while not (found := [one for one in self.neighbour.heard if isinstance(one, kind)]):
            assert not self.neighbour.is_over, "the neighbour has lost its connection"
            assert self.loop.time() < end, f"the neighbour waits for {kind.__name__}"
            await asyncio.sleep(0)
            self.neighbour.read()
        return found[-1]

    async def finish(self) -> None:
        for who in [*self.ends]:
            self._leave(who)
        await self.check()
        self.neighbour.close()
        await asyncio.wait_for(self._until_alone(), MOST_SECONDS)
        assert not self.service.has_sessions
        assert not self.failures, self.failures

    async def _until_alone(self) -> None:
        while self.endpoint._connections:
            await asyncio.sleep(0)


async def tell(data: bytes) -> None:
    listening = Listening()
    await listening.begin()
    for step in story.read(data):
        await listening.take(step)
        await listening.check()
    await listening.finish()


def fuzz(data: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(tell(data))
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors stay open"
