"""Sockets and credentials: the one event loop of the broker, and nothing else in it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pwd
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .. import protocol
from ..channel import Channel
from ..devices import find_all
from ..errors import GpuShareError, LimitExceeded, ProtocolError
from ..protocol import Error, Message
from ..settings import Settings, socket_path
from .accounts import Accounts
from .peer import Peer
from .service import Service
from .start import checked, make_directory

TICK_SECONDS = 0.1
RECEIVE_BYTES = 1 << 16
RATE_WINDOW_SECONDS = 10.0
GREETING_SECONDS = 10.0  # who says nothing for so long is no client
MAX_BACKLOG_BYTES = 1 << 20  # a session that reads none of its own few messages is stuck
BACKLOG_CONNECTIONS = 256
EXITING = 0x4  # the kernel's PF_EXITING: this thread will not return to its program

log = logging.getLogger("jupyter_gpushare.broker")


class AlreadyRunning(GpuShareError):
    """Another broker owns this socket."""

    code = "already_running"


class Connection(asyncio.BufferedProtocol, Peer):
    """One client: cuts its bytes into messages, and says who it is.

    Buffered, because asyncio's plain protocol allocates 256 KiB for each message that it reads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._frames = protocol.Frames()
        self._window_end = 0.0
        self._in_window = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.pid, self.uid = _credentials(transport.get_extra_info("socket"))
        self.user = _user_name(self.uid)
        self._endpoint.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Filled and emptied in one go, so that one buffer serves all connections."""
        return self._endpoint.buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = time.monotonic()
        self._take_chunks()  # they were sent before what was said afterwards
        try:
            for body in self._frames.feed(self._endpoint.buffer[:nbytes]):
                self._count(now)
                self._endpoint.service.handle(self, protocol.decode_from_client(body), now)
        except (ProtocolError, LimitExceeded) as error:
            self._refuse(error)
        self._endpoint.happened(now)

    def connection_lost(self, error: Exception | None) -> None:
        if self.channel is not None:
            self._endpoint.forget(self.channel)
            self.channel.close()
            self.channel = None
        self._endpoint.left(self)

    def send(self, *messages: Message) -> None:
        self.send_frame(b"".join(map(protocol.encode, messages)))

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
        with socket.socket(fileno=os.dup(own)) as connection:
            try:
                if self.is_behind():
                    raise BlockingIOError
                socket.send_fds(connection, [protocol.encode(message)], [descriptor])
            except OSError:
                log.warning("process %d does not read: connection closed", self.pid)
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
        return any(map(_computes, Path(f"/proc/{self.pid}/task").glob("*/stat")))

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
        log.warning("process %d of %s: %s", self.pid, self.user, error)
        self.send(Error(error.code, str(error)))
        if self.channel is not None:
            self._endpoint.forget(self.channel)
        self.close()


class Endpoint:
    """Listens, keeps the deadlines of the service, and ends by itself when nobody is there."""

    def __init__(self, settings: Settings, service: Service) -> None:
        self.settings = settings
        self.service = service
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._idle = self._loop.call_later(settings.idle_exit_seconds, self._stopped.set)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until told to stop, by a message, a signal, or loneliness."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        server = await self._loop.create_unix_server(
            lambda: Connection(self), sock=listener, backlog=BACKLOG_CONNECTIONS
        )
        await self._stopped.wait()
        server.close()
        for connection in tuple(self._connections):
            connection.close()

    def attend(self, channel: Channel, reader: Callable[[], None]) -> None:
        self._loop.add_reader(channel.fileno(), reader)

    def forget(self, channel: Channel) -> None:
        self._loop.remove_reader(channel.fileno())

    def joined(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._idle.cancel()
        self._loop.call_later(GREETING_SECONDS, self._close_if_silent, connection)
        if self._ticking is None:
            self._tick()

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        now = time.monotonic()
        self.service.lost(connection, now)
        self.happened(now)
        if not self._connections:
            self._idle = self._loop.call_later(self.settings.idle_exit_seconds, self._stopped.set)

    def happened(self, now: float) -> None:
        """After each event: is there a new deadline, or an end?"""
        if self.service.is_stopping:
            self._stopped.set()
        due = self.service.next_event(now)
        if due is not None and (self._alarm is None or due < self._alarm.when()):
            self._set_alarm(due)

    def _set_alarm(self, due: float) -> None:
        """asyncio's clock is time.monotonic too. An alarm that rings too early is set anew."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = time.monotonic()
        self.service.pass_time(now)
        self.happened(now)

    def _tick(self) -> None:
        self._ticking = None
        if self._connections:
            now = time.monotonic()
            self.service.tick(now)
            self.happened(now)
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _close_if_silent(self, connection: Connection) -> None:
        if not connection.greeted:
            connection.close()


def run(settings: Settings) -> None:
    """Run a broker until it ends. Raises AlreadyRunning where one has the socket."""
    path = checked(socket_path(settings))
    make_directory(path.parent)
    _raise_descriptor_limit()
    with open(path.with_suffix(".lock"), "a+") as lock:
        has_crashed = _own_socket(lock, path)
        listener = _listen(path)
        log.info("broker %d listens on %s", os.getpid(), path)
        accounts = Accounts.of(settings)
        asyncio.run(_serve(settings, accounts, listener, has_crashed))
        accounts.close()
        path.unlink(missing_ok=True)
        lock.truncate(0)
    log.info("broker %d ends", os.getpid())


async def _serve(
    settings: Settings, accounts: Accounts, listener: socket.socket, has_crashed: bool
) -> None:
    grants_from = time.monotonic() + settings.recovery_seconds if has_crashed else 0.0
    service = Service(
        settings,
        find_all(settings),
        started=time.time(),
        grants_from=grants_from,
        accounts=accounts,
    )
    await Endpoint(settings, service).serve(listener)
    service.close(time.monotonic())


def _own_socket(lock: IO[str], path: Path) -> bool:
    """Take the lock for this process's life; True if the last owner did not end in good order."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"a broker runs on {path} already") from None
    lock.seek(0)
    has_crashed = bool(lock.read())
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return has_crashed


def _listen(path: Path) -> socket.socket:
    """Under the lock a socket file that lies there is a dead broker's."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user of the other end, by the kernel's word."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def _computes(thread: Path) -> bool:
    """By its state and flags; the name before them may contain anything but ends at the last )."""
    try:
        fields = thread.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & EXITING


def _user_name(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _raise_descriptor_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
