"""One client of the broker: its bytes cut into messages, its rate, and who it is."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import protocol
from ..errors import GpuShareError, LimitExceeded, ProtocolError
from ..protocol import Error, Hello, Message, ToBroker
from .crowd import Party
from .identity import Identity
from .peer import Peer
from .start import other_end
from .translation import printable

if TYPE_CHECKING:
    from .endpoint import Endpoint

RATE_WINDOW_SECONDS = 10.0
MESSAGES_AT_ONCE = 8  # then other connections are looked after, also of the same user
MAX_EARLY_MESSAGES = 100  # of who does not wait for its Welcome
MAX_BACKLOG_BYTES = 1 << 20  # a session that reads none of its own few messages is stuck
EXITING = 0x4  # the kernel's PF_EXITING: this thread will not return to its program

log = logging.getLogger("jupyter_gpushare.broker")


class Connection(asyncio.BufferedProtocol, Peer):
    """One client: cuts its bytes into messages, and says who it is.

    Buffered, because asyncio's plain protocol allocates 256 KiB for each message that it reads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._frames = protocol.Frames()
        self._heard: deque[bytes] = deque()  # messages that are to be handled
        self._party: Party | None = None
        self._window_end = 0.0
        self._in_window = 0
        self._early: list[ToBroker] | None = None  # said while it is asked who speaks
        self._greeting: asyncio.Task[Identity] | None = None
        self._check: asyncio.Task[None] | None = None  # of the token, as long as it is connected
        self.patience: asyncio.TimerHandle | None = None  # with it, as long as it says nothing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.pid, self.uid = other_end(transport.get_extra_info("socket"))
        self._endpoint.joined(self)
        try:
            self.stands_for(self._endpoint.identity(self.uid))
        except LimitExceeded as error:
            self._refuse(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Filled and emptied in one go, so that one buffer serves all connections."""
        return self._endpoint.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take_chunks()  # they were sent before what was said afterwards
        try:
            self._heard += self._frames.feed(self._endpoint.buffer[:nbytes])
        except LimitExceeded as error:
            self._refuse(error)
        self.work()

    def work(self) -> None:
        """Handle what there is, as long as its user has time; the rest waits, and is read no
        further."""
        if self._party is None:
            return  # it has gone
        self._party.begin(now := time.monotonic())
        used = time.thread_time()  # or a user would pay for what else runs on the processors
        try:
            for _ in range(MESSAGES_AT_ONCE):
                if not (self._heard and self._party.has_time):
                    break
                self._count(now)
                self._hear(protocol.decode_from_client(self._heard.popleft()), now)
                before, used, now = used, time.thread_time(), time.monotonic()
                self._party.spend(used - before)
        except (ProtocolError, LimitExceeded) as error:
            self._refuse(error)
        except Exception:  # a border: others wait, whatever has become of this one
            log.exception("a message of process %d could not be handled", self.pid)
            self._transport.abort()
        self._wait_for_time()
        self._endpoint.happened(now)

    def _wait_for_time(self) -> None:
        if self._heard and self._party is not None:
            self._transport.pause_reading()
            self._endpoint.crowd.wait(self._party, self)
        else:
            self._transport.resume_reading()

    def _hear(self, message: ToBroker, now: float) -> None:
        """One after the other: what is said while somebody is asked who speaks waits."""
        if self._early is not None:
            if len(self._early) >= MAX_EARLY_MESSAGES:
                raise LimitExceeded(f"{MAX_EARLY_MESSAGES} messages came before the Welcome")
            self._early.append(message)
        elif isinstance(message, Hello) and not self.user and (message.token or message.ticket):
            self._early = []
            self._greeting = self._endpoint.identify(self, message)
            self._greeting.add_done_callback(partial(self._identified, message))
        else:
            self._endpoint.service.handle(self, message, now)

    def _identified(self, hello: Hello, done: asyncio.Task[Identity]) -> None:
        if done.cancelled():
            return
        try:
            self.stands_for(done.result())
        except GpuShareError as error:
            self._refuse(error)
            return
        except Exception:  # a border: nobody else waits for this
            log.exception("process %d could not be identified", self.pid)
            self.close()
            return
        if self._transport.is_closing():
            return  # or what it said early would outlive it
        if hello.token:
            self._check = self._endpoint.keep_checking(self, hello)
            self._check.add_done_callback(self._checked)
        early, self._early = self._early or [], None
        now = time.monotonic()
        for message in (hello, *early):
            self._endpoint.service.handle(self, message, now)
        self._endpoint.happened(now)

    def _checked(self, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and isinstance(error := done.exception(), GpuShareError):
            for connection in (self, *self._endpoint.vouched_by(self)):
                connection._refuse(error)

    def stands_for(self, identity: Identity) -> None:
        self.user, self.groups = identity.user, identity.groups
        self.is_owner, self.may_vouch = identity.is_owner, identity.may_vouch
        self._join(self.user or f"uid {self.uid}")

    def _join(self, user: str) -> None:
        """Raises LimitExceeded where this user has too many connections."""
        if self._party is None or self._party.user != user:
            party = self._endpoint.crowd.join(user)
            self._leave_party()
            self._party = party

    def _leave_party(self) -> None:
        if self._party is not None:
            self._endpoint.crowd.leave(self._party)
        self._party = None

    @property
    def identity(self) -> Identity:
        return Identity(self.user, self.groups, self.is_owner, self.may_vouch)

    @property
    def is_silent(self) -> bool:
        """It has not even tried to say who it is."""
        return not self.greeted and self._early is None

    def connection_lost(self, error: Exception | None) -> None:
        for asking in (self._greeting, self._check):
            if asking is not None:
                asking.cancel()
        self._heard.clear()
        self._leave_party()
        if self.channel is not None:
            self._endpoint.forget(self.channel)
            self.channel.close()
            self.channel = None
        self._endpoint.left(self)

    def send(self, *messages: Message) -> None:
        self.send_frame(b"".join(map(protocol.encode, messages)))

    def send_soon(self, message: Message) -> None:
        """Whoever is asked for its turn wakes its successor at once. By then the broker sleeps, or
        the two of them would wait for its processor where there are few."""
        self._endpoint.soon(partial(self.send, message))

    def send_frame(self, frame: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MAX_BACKLOG_BYTES + len(frame):
            log.warning("process %d does not read: connection closed", self.pid)
            self._transport.abort()

    def send_with(self, message: Message, descriptor: int) -> None:
        """Past asyncio, which cannot send descriptors; so nothing may wait to be sent before it."""
        if self._transport.is_closing():
            return
        own = self._transport.get_extra_info("socket").fileno()
        try:
            if self.is_behind():
                raise BlockingIOError("it does not read")
            with socket.socket(fileno=os.dup(own)) as connection:
                socket.send_fds(connection, [protocol.encode(message)], [descriptor])
        except OSError as error:  # it comes again; what else this event decides is not lost
            log.warning(
                "process %d is sent no memory, so its connection is closed: %s", self.pid, error
            )
            self._transport.abort()

    def open_channel(self, message: Message) -> None:
        super().open_channel(message)
        assert self.channel is not None
        self._endpoint.attend(self.channel, self._chunks_came)

    def _chunks_came(self) -> None:
        try:
            self._count(time.monotonic())
        except LimitExceeded as error:
            self._refuse(error)
        else:
            self._take_chunks()

    def _take_chunks(self) -> None:
        if self.channel is None:
            return
        for batch in self.channel.received():
            self._endpoint.service.take_chunks(self, batch)
        if self.channel.is_over:  # or the event loop would look at it for ever
            self._endpoint.forget(self.channel)

    def is_alive(self) -> bool:
        """A killed one is seen for a while after its connection ended, but computes no more."""
        if self.pid == 0:
            return True  # of another container, whose processes cannot be seen
        return computes(self.pid)

    def abort_if_orphaned(self) -> None:
        """Its process may end and leave the connection to a child: C code that forks tells no
        Python to close it. Processes of another container cannot be seen."""
        if self.pid == 0:
            return
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            pass
        except ProcessLookupError:
            self._transport.abort()

    def is_behind(self) -> bool:
        return self._transport.get_write_buffer_size() > 0

    def close(self) -> None:
        self._transport.close()

    def _count(self, now: float) -> None:
        """Keep the rate: a client in a wild loop must not cost its neighbours."""
        if now >= self._window_end:
            self._window_end, self._in_window = now + RATE_WINDOW_SECONDS, 0
        self._in_window += 1
        rate = self._endpoint.settings.messages_per_second
        if self._in_window > rate * RATE_WINDOW_SECONDS:
            raise LimitExceeded(f"more than {rate} messages per second; the connection is closed")

    def _refuse(self, error: GpuShareError) -> None:
        """What cannot be read cannot be trusted to be in step: say why, then close."""
        why = printable(str(error))  # or who is refused could write lines of the log
        log.warning("process %d of %s: %s", self.pid, self.user or f"uid {self.uid}", why)
        self._heard.clear()
        self.send(Error(error.code, str(error)))
        if self.channel is not None:
            self._endpoint.forget(self.channel)
        self.close()


def computes(pid: int) -> bool:
    """Whether a thread of a process still runs its program; it may end while this is looked at."""
    threads = Path(f"/proc/{pid}/task")
    try:
        return any(_computes(threads / name / "stat") for name in os.listdir(threads))
    except OSError:
        return False


def _computes(thread: Path) -> bool:
    """By its state and flags; the name before them may contain anything but ends at the last )."""
    try:
        fields = thread.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & EXITING
