"""One client of the broker: its bytes cut into messages, its rate, and its user."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import GpuShareError, LimitExceeded, ProtocolError
from ...wire import framing
from ...wire.framing import ToBroker
from ...wire.launch import other_end
from ...wire.messages import Error, Hello, Message
from ..access.identity import Identity
from ..peer import Peer
from ..snapshot.views import printable
from .rate_limit import Budget

if TYPE_CHECKING:
    from .server import Endpoint

RATE_WINDOW_SECONDS = 10.0
MESSAGES_AT_ONCE = 8  # then other connections are served, including the same user's
MAX_BACKLOG_BYTES = 1 << 20  # a session that leaves more of its few messages unread is stuck
SILENT = "too many connections of this process have not said who they are: say Hello at once"
EXITING = 0x4  # the kernel's PF_EXITING: this thread will not return to its program

log = logging.getLogger("jupyter_gpushare.broker")


class Connection(asyncio.BufferedProtocol, Peer):
    """One client: cuts its bytes into messages, and finds out its user.

    Buffered, because asyncio's plain protocol allocates 256 KiB for each message that it reads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._frames = framing.Frames()
        self._heard: deque[bytes] = deque()  # messages to handle
        self._budget: Budget | None = None
        self._counts = False  # whether it counts as a connection of its user
        self._window_end = 0.0
        self._in_window = 0
        self._is_aborted = False  # whether it was aborted, since it was half closed
        self._greeting: asyncio.Task[Identity] | None = None  # while the user is being looked up
        self._check: asyncio.Task[None] | None = None  # checks the token again and again
        self.timer: asyncio.TimerHandle | None = None  # ends a silent connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.pid, self.uid = other_end(transport.get_extra_info("socket"))
        self._endpoint.joined(self)
        self.stands_for(self._endpoint.identity(self.uid))
        self._endpoint.silent_connections.join(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of all connections: each one fills and empties it in one go."""
        return self._endpoint.buffer

    def buffer_updated(self, nbytes: int = 0) -> None:
        """Handle the bytes that have come, while the user is known and has time left. After that
        the connection is not read, so the broker keeps nothing for an unknown client."""
        if self._budget is None:
            return  # the connection has ended
        self._budget.begin(time.monotonic())
        try:
            self._cut(nbytes)
            for message in self._due():
                if isinstance(message, Hello):
                    self._greet(message)
                else:
                    self._endpoint.service.handle(self, message, self._endpoint.now())
        except (ProtocolError, LimitExceeded) as error:
            self._refuse(error)
        except Exception as error:  # a border: the other clients must still be served
            self._endpoint.end_without_memory(error)
            log.exception("a message of process %d could not be handled", self.pid)
            self._transport.abort()
        self._wait_for_time()
        self._endpoint.happened(self._endpoint.now())

    def _cut(self, nbytes: int) -> None:
        """Cut messages from the bytes that have come."""
        if nbytes:
            self._take_chunks()  # the chunks were sent before these bytes
            self._heard += self._frames.feed(self._endpoint.buffer[:nbytes])

    def _due(self) -> Iterator[ToBroker]:
        """Yield the messages that there is time for, and count that time to the user."""
        used = time.thread_time()  # wall time would charge the user for other programs
        for _ in range(MESSAGES_AT_ONCE):
            if not self._heard or self._greeting is not None or not self._has_time:
                return
            self._count(self._endpoint.now())
            yield framing.decode_from_client(self._heard.popleft())
            before, used = used, time.thread_time()
            if self._budget is not None:
                self._budget.spend(used - before)

    @property
    def _has_time(self) -> bool:
        return self._budget is not None and self._budget.has_time

    def _wait_for_time(self) -> None:
        if self._greeting is not None:
            self._transport.pause_reading()
        elif self._heard and self._budget is not None:
            self._transport.pause_reading()
            self._endpoint.rate_limiter.wait(self._budget, self.buffer_updated)
        else:
            self._transport.resume_reading()

    def _greet(self, hello: Hello) -> None:
        """Take a Hello. Later messages wait while the hub is asked."""
        if not self.user and (hello.token or hello.ticket):
            self._endpoint.silent_connections.leave(self)
            self._greeting = self._endpoint.identify(self, hello)
            self._greeting.add_done_callback(partial(self._identified, hello))
            return
        if self.user:
            self._enter()
        self._endpoint.service.handle(self, hello, self._endpoint.now())

    def _identified(self, hello: Hello, done: asyncio.Task[Identity]) -> None:
        self._greeting = None
        if done.cancelled():
            return
        try:
            self.stands_for(done.result())
            self._enter()
        except GpuShareError as error:
            self._refuse(error)
            return
        except Exception as error:  # a border: the other clients must still be served
            self._endpoint.end_without_memory(error)
            log.exception("process %d could not be identified", self.pid)
            self.close()
            return
        if self._transport.is_closing():
            return  # otherwise its session would outlive it
        if hello.token:
            self._check = self._endpoint.keep_checking(self, hello)
            self._check.add_done_callback(self._checked)
        self._endpoint.service.handle(self, hello, self._endpoint.now())
        self.buffer_updated()

    def _checked(self, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and isinstance(error := done.exception(), GpuShareError):
            for connection in (self, *self._endpoint.let_in_by(self)):
                connection._refuse(error)

    def stands_for(self, identity: Identity) -> None:
        self.user, self.groups = identity.user, identity.groups
        self.is_owner, self.may_issue_tokens = identity.is_owner, identity.may_issue_tokens
        self._belong(self._endpoint.rate_limiter.budget(self.user or f"uid {self.uid}"))

    def _belong(self, budget: Budget) -> None:
        """Use the budget of this user from now on. Raises LimitExceeded where the user has too many
        connections."""
        if self._budget is budget:
            return
        if self._counts:
            self._endpoint.rate_limiter.join(budget.user)
        self._leave_budget()
        self._budget = budget

    def _enter(self) -> None:
        """Count the connection, since its user is known. Raises LimitExceeded."""
        self._endpoint.silent_connections.leave(self)
        if not self._counts and self._budget is not None:
            self._endpoint.rate_limiter.join(self._budget.user)
            self._counts = True

    def _leave_budget(self) -> None:
        if self._budget is not None:
            self._budget.behind.discard(self)
            if self._counts:
                self._endpoint.rate_limiter.leave(self._budget)
        self._budget = None

    @property
    def has_spoken(self) -> bool:
        return bool(self._heard)

    def end_silent(self) -> None:
        """End this connection: its process has too many without a Hello."""
        self.send(Error(LimitExceeded.code, SILENT))
        self.close()

    @property
    def identity(self) -> Identity:
        return Identity(self.user, self.groups, self.is_owner, self.may_issue_tokens)

    @property
    def is_silent(self) -> bool:
        """Whether the client has not sent a Hello yet."""
        return not self.greeted and self._greeting is None

    def connection_lost(self, error: Exception | None) -> None:
        for asking in (self._greeting, self._check):
            if asking is not None:
                asking.cancel()
        self._heard.clear()
        self._endpoint.silent_connections.leave(self)
        self._leave_budget()
        if self.channel is not None:
            self._endpoint.forget(self.channel)
            self.channel.close()
            self.channel = None
        self._endpoint.left(self)

    def send(self, *messages: Message) -> None:
        self.send_frame(b"".join(map(framing.encode, messages)))

    def send_soon(self, message: Message) -> None:
        """Send the message last in the present event. A session that receives a Yield wakes its
        successor at once. With few processors both would wait for the broker's, so the broker
        should sleep by then."""
        self._endpoint.soon(partial(self.send, message))

    def send_frame(self, frame: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(frame)
        if self.unread_bytes > MAX_BACKLOG_BYTES + len(frame):
            self.stop()
        elif self.unread_bytes and self._budget is not None:
            self._budget.falls_behind(self, len(frame))

    @property
    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def stop(self) -> None:
        log.warning("process %d does not read: connection closed", self.pid)
        self._transport.abort()

    def send_with(self, message: Message, descriptor: int) -> None:
        """Send past asyncio, which cannot send descriptors. So asyncio's buffer has to be empty."""
        if self._transport.is_closing():
            return
        own = self._transport.get_extra_info("socket").fileno()
        try:
            if self.is_behind():
                raise BlockingIOError("it does not read")
            with socket.socket(fileno=os.dup(own)) as connection:
                socket.send_fds(connection, [framing.encode(message)], [descriptor])
        except OSError as error:  # it reconnects; the event's other decisions must not be lost
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
            self._count(self._endpoint.now())
        except LimitExceeded as error:
            self._refuse(error)
        else:
            self._take_chunks()

    def _take_chunks(self) -> None:
        if self.channel is None:
            return
        for batch in self.channel.received():
            self._endpoint.service.take_chunks(self, batch)
        if self.channel.is_over:  # otherwise the event loop would report it forever
            self._endpoint.forget(self.channel)

    def is_alive(self) -> bool:
        """Whether its process computes. A killed process stays visible for a while after its
        connection ended."""
        if self.pid == 0:
            return True  # its container hides its processes
        return computes(self.pid)

    def abort_if_orphaned(self) -> None:
        """Abort if its process has ended and left the connection to a child. A fork by C code does
        not let Python close the connection. Processes of another container cannot be seen."""
        if self.pid and not _exists(self.pid):
            self._transport.abort()

    def end_if_half_closed(self) -> None:
        """Close again if closing failed for lack of memory. asyncio does not try again by itself,
        and cannot if only the call of `connection_lost` was left."""
        if not self._transport.is_closing() or self.is_behind():
            return
        if not self._is_aborted:
            self._is_aborted = True
            self._transport.abort()
        else:
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self.connection_lost(None)

    def is_behind(self) -> bool:
        return self.unread_bytes > 0

    def close(self) -> None:
        self._transport.close()

    def _count(self, now: float) -> None:
        """Enforce the message rate: a client in a wild loop must not slow its neighbours down."""
        if now >= self._window_end:
            self._window_end, self._in_window = now + RATE_WINDOW_SECONDS, 0
        self._in_window += 1
        rate = self._endpoint.settings.messages_per_second
        if self._in_window > rate * RATE_WINDOW_SECONDS:
            raise LimitExceeded(f"more than {rate} messages per second; the connection is closed")

    def _refuse(self, error: GpuShareError) -> None:
        """Send the reason, then close: after an unreadable message no later one can be trusted."""
        why = printable(str(error))  # otherwise a refused client could forge lines of the log
        log.warning("process %d of %s: %s", self.pid, self.user or f"uid {self.uid}", why)
        self._heard.clear()
        self.send(Error(error.code, str(error)))
        if self.channel is not None:
            self._endpoint.forget(self.channel)
        self.close()


def computes(pid: int) -> bool:
    """Whether a thread of a process still runs its program. The process may end during the look."""
    threads = Path(f"/proc/{pid}/task")
    try:
        return any(_computes(threads / name / "stat") for name in os.listdir(threads))
    except OSError:
        return _exists(pid)


def _exists(pid: int) -> bool:
    """Whether the process exists, even if the option hidepid of /proc hides it: an invisible
    process may compute."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _computes(thread: Path) -> bool:
    """Whether a thread computes, by its state and flags. The name before them ends at the last
    `)`."""
    try:
        fields = thread.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & EXITING
