"""A blocking connection to the broker: send, receive, ask, look, watch."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

from .. import _core
from ..errors import (
    BrokerUnavailable,
    ConnectionLost,
    ProtocolError,
    Unanswered,
    Unidentified,
    from_code,
)
from ..settings import Settings, load
from . import credentials, framing, launch, messages
from .fd_channel import Channel
from .framing import ToClient
from .messages import (
    ALONE,
    Error,
    GiveBack,
    Grant,
    Hello,
    Ledger,
    Look,
    Message,
    Notice,
    Opened,
    PageIn,
    PageOut,
    RenewKey,
    Rest,
    Room,
    Trim,
    Wait,
    Watch,
    Welcome,
    Withdraw,
    Yield,
)
from .snapshot import Snapshot, in_words

RECEIVE_BYTES = 1 << 13  # a larger buffer costs more to make than most messages to read
RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
ANCILLARY_BYTES = socket.CMSG_SPACE(8 * array("i").itemsize)  # for a few descriptors at once
GREETINGS = 3  # tries, since a broker may end while it is greeted
ANSWER_SECONDS = 10.0  # a broker answers in milliseconds, unless it does not respond at all
IDENTIFY_SECONDS = 40.0  # it asks the hub, which may be away, several times
Proof = Callable[[Hello, Settings], Hello]  # adds the token or ticket of the user
# Messages that a broker sends unasked to a connection with a session.
UNASKED = (
    *(Grant, Ledger, Trim, Yield, RenewKey, Withdraw),
    *(PageOut, PageIn, GiveBack, Rest, Room, Notice, Wait),
)


def _is_unasked(message: ToClient) -> bool:
    """Whether the message answers no request, but is about the session."""
    if isinstance(message, Error):
        return not message.is_answer
    return isinstance(message, UNASKED)


class LaneMemory:
    """The memory of the lane that the newest Grant is for; number 0 before the first.

    It has one `descriptor`; or -1, and a `channel` for its chunks. If another session uses the lane
    at the same time, this one has an `end`, and `ledger` is the descriptor of the ledger.
    """

    def __init__(self, number: int, descriptor: int, channel: Channel | None = None) -> None:
        self.number = number
        self.descriptor = descriptor
        self.channel = channel
        self.end = ALONE
        self.ledger = -1
        self.grant: Grant | None = None  # the latest one for which this memory was used

    def take_ledger(self, descriptor: int) -> None:
        """Use this ledger from now on."""
        if self.ledger >= 0:
            os.close(self.ledger)
        self.ledger = descriptor

    def leave_end(self) -> None:
        """Tell the session at the other end that this process uses nothing of the lane. Called
        before this process has opened the ledger."""
        if self.end != ALONE and self.ledger >= 0:
            _core.let_go_of_end(self.ledger, self.end)

    def __del__(self) -> None:
        for descriptor in (self.descriptor, self.ledger):
            if descriptor >= 0:
                os.close(descriptor)


class Client:
    """One connection. Only one thread at a time may use it, but any thread may call `shut_down`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = framing.Frames(framing.MAX_SNAPSHOT_BYTES)
        self._received: deque[ToClient] = deque()
        self._descriptors: deque[int] = deque()  # of Grants that are not received yet
        self._channel: Channel | None = None
        self._ledgers: dict[int, int] = {}  # that came before the Grant of their memory
        self.lane_memory = LaneMemory(0, -1)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self.welcome: Welcome

    @classmethod
    def connect(
        cls,
        settings: Settings | None = None,
        program: str = "",
        start: bool = True,
        proof: Proof = credentials.with_ticket,
    ) -> Client:
        """Connect; start a broker if `start` allows it. `proof` authenticates the user to a broker
        that serves a JupyterHub. Raises BrokerUnavailable; NotPermitted if there is no proof, or a
        wrong one."""
        settings = settings or load()
        try:
            for _ in range(GREETINGS - 1):
                try:
                    return cls._connect_once(settings, program, start, proof)
                except Unanswered:
                    raise
                except ConnectionLost:
                    pass  # the broker was just ending
            return cls._connect_once(settings, program, start, proof)
        except Unanswered as error:
            raise BrokerUnavailable(str(error)) from None

    @classmethod
    def _connect_once(cls, settings: Settings, program: str, start: bool, proof: Proof) -> Client:
        client = cls(launch.connect(settings, start))
        try:
            client.welcome = client._greet(Hello(messages.PROTOCOL, program), settings, proof)
        except BaseException:
            client.close()
            raise
        return client

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def sees_processes(self) -> bool:
        """Whether process ids mean the same processes to the broker and to this process. They do
        not if one of the two is in a container."""
        pid, _ = launch.other_end(self._socket)
        return pid == self.welcome.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *messages: Message) -> None:
        """Send messages in one piece. Raises ConnectionLost."""
        try:
            self._socket.sendall(b"".join(map(framing.encode, messages)))
        except OSError as error:
            self._lost(error)

    def has_news(self) -> bool:
        """Whether `receive` would return, or find the connection ended, without waiting."""
        return bool(self._received or self._poll.poll(0))

    @property
    def has_received(self) -> bool:
        """Whether `receive` would return a message that has been read from the socket already."""
        return bool(self._received)

    def receive(self, until: float = math.inf) -> ToClient:
        """Wait for the next message and return it; interruptible. Raises ConnectionLost, also when
        none has come at the time `until`."""
        while not self._received:
            try:
                self._await_bytes(until)
                data = self._read()
            except OSError as error:
                self._lost(error)
            if not data:
                self._lost(None)
            self._received.extend(map(framing.decode_from_broker, self._frames.feed(data)))
        return self._next()

    def _await_bytes(self, until: float) -> None:
        """Wait for bytes. Raises Unanswered and ends the connection, since a late answer would be
        taken for the answer to the next question."""
        if until < math.inf and not self._poll.poll(1000 * max(0.0, until - time.monotonic())):
            self._socket.shutdown(socket.SHUT_RDWR)
            raise Unanswered("the broker stands still: it has not answered in time")

    def _next(self) -> ToClient:
        message = self._received.popleft()
        if isinstance(message, Grant) and message.memory not in (0, self.lane_memory.number):
            self.lane_memory = self._new_memory(message.memory)
            self._take_ledger()
        if isinstance(message, Ledger):
            self._ledgers[message.memory] = self._take_descriptor()
            self._take_ledger()
        if isinstance(message, Opened) and message.chunk_bytes and self._channel is None:
            self._channel = Channel(socket.socket(fileno=self._take_descriptor()))
        if isinstance(message, Snapshot):
            return in_words(message)
        return message.in_words() if isinstance(message, Wait) else message

    def _new_memory(self, number: int) -> LaneMemory:
        if self._channel is not None:
            return LaneMemory(number, -1, self._channel)
        return LaneMemory(number, self._take_descriptor())

    def release_lane(self, number: int) -> None:
        """Forget this memory of a lane, unless it consists of chunks, which have no descriptor."""
        if number == self.lane_memory.number and self.lane_memory.channel is None:
            self.lane_memory = LaneMemory(0, -1)

    def _take_ledger(self) -> None:
        if (ledger := self._ledgers.pop(self.lane_memory.number, None)) is not None:
            self.lane_memory.take_ledger(ledger)

    def _take_descriptor(self) -> int:
        if not self._descriptors:
            raise ProtocolError("a message came without its descriptor")
        return self._descriptors.popleft()

    def _read(self) -> bytes:
        data, ancillary, _, _ = self._socket.recvmsg(RECEIVE_BYTES, ANCILLARY_BYTES, RECEIVE_FLAGS)
        for level, kind, descriptors in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array("i", descriptors))
        return data

    def ask(
        self,
        message: Message,
        aside: Callable[[ToClient], None] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> ToClient:
        """Send and wait for the answer; other messages that come in between go to `aside`.

        Raises the error that the broker answered, and ConnectionLost if no answer came in time.
        """
        self.send(message)
        return self._answer(aside, seconds)

    def _answer(
        self,
        aside: Callable[[ToClient], None] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> ToClient:
        until = time.monotonic() + seconds
        while _is_unasked(answer := self.receive(until)):
            if aside is not None:
                aside(answer)
        if isinstance(answer, Error):
            raise from_code(answer.code, answer.message)
        return answer

    def look(self) -> Snapshot:
        """Return one Snapshot."""
        answer = self.ask(Look())
        if not isinstance(answer, Snapshot):
            raise ProtocolError(f"a Snapshot was asked for, {type(answer).__name__} came")
        return answer

    def watch(self, interval_seconds: float = 0.25) -> Iterator[Snapshot]:
        """Yield a Snapshot now and after changes; `welcome` is the one that holds for that
        Snapshot. Raises ConnectionLost when the broker goes away."""
        self.send(Watch(interval_seconds))
        while True:
            message = self.receive()
            if isinstance(message, Error):
                raise from_code(message.code, message.message)
            if isinstance(message, Welcome):
                self.welcome = message
            if isinstance(message, Snapshot):
                yield message

    def shut_down(self) -> None:
        """End the connection; a thread that waits in `receive` gets ConnectionLost. Any thread may
        call it, since the descriptor stays open: another thread may be about to poll it."""
        # an OSError says that the connection has ended already
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and close its descriptors."""
        self.shut_down()
        self.abandon()
        self.lane_memory = LaneMemory(0, -1)  # closes the descriptors of the old one

    def abandon(self) -> None:
        """Close this process's descriptors; the connection belongs to the parent process."""
        self._socket.close()
        self._descriptors.extend(self._ledgers.values())
        self._ledgers.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        if self._channel is not None:
            self._channel.close()

    def _greet(self, hello: Hello, settings: Settings, proof: Proof) -> Welcome:
        # a broker that refuses us at once has said why by now
        with contextlib.suppress(ConnectionLost):
            self.send(hello)
        try:
            answer = self._answer()
        except Unidentified:
            answer = self.ask(proof(hello, settings), seconds=IDENTIFY_SECONDS)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"a Welcome was due, {type(answer).__name__} came")
        return answer

    def _lost(self, error: OSError | None) -> NoReturn:
        cause = f": {error.strerror}" if error is not None else ""
        raise ConnectionLost(f"the connection to the broker ended{cause}") from None
