"""Sockets and credentials: the one event loop of the broker, and nothing else in it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import grp
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from .. import protocol
from ..channel import Channel
from ..devices import find_all
from ..errors import (
    BrokerUnavailable,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    ProtocolError,
)
from ..protocol import Error, Hello, Message, ToBroker
from ..rulebook import RulebookFile
from ..settings import Settings, socket_path
from .accounts import Accounts
from .door import Door
from .identity import NOBODY, Identity, of_process
from .peer import Peer
from .service import Service
from .start import checked, is_shared, make_directory, other_end
from .translation import printable

TICK_SECONDS = 0.1
SOCKET_LOOK_SECONDS = 0.5  # between two looks whether the socket's file is there
RECEIVE_BYTES = 1 << 16
RATE_WINDOW_SECONDS = 10.0
GREETING_SECONDS = 10.0  # who says nothing for so long is no client
LEAST_CHECK_SECONDS = 1.0  # between two questions whether a connection's token is still known
MAX_EARLY_MESSAGES = 100  # of who does not wait for its Welcome
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
        self._early: list[ToBroker] | None = None  # said while it is asked who speaks
        self._greeting: asyncio.Task[Identity] | None = None
        self._check: asyncio.Task[None] | None = None  # of the token, as long as it is connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.pid, self.uid = other_end(transport.get_extra_info("socket"))
        self.stands_for(self._endpoint.identity(self.uid))
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
                self._hear(protocol.decode_from_client(body), now)
        except (ProtocolError, LimitExceeded) as error:
            self._refuse(error)
        self._endpoint.happened(now)

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
            self._refuse(error)

    def stands_for(self, identity: Identity) -> None:
        self.user, self.groups = identity.user, identity.groups
        self.is_owner, self.may_vouch = identity.is_owner, identity.may_vouch

    @property
    def is_silent(self) -> bool:
        """It has not even tried to say who it is."""
        return not self.greeted and self._early is None

    def connection_lost(self, error: Exception | None) -> None:
        for asking in (self._greeting, self._check):
            if asking is not None:
                asking.cancel()
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

    def abort_if_orphaned(self) -> None:
        """Its process may end and leave the connection to a child: C code that forks tells no
        Python to close it. Processes of another container cannot be seen."""
        try:
            os.kill(self.pid or os.getpid(), 0)
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
        self._door = Door(settings, service.tickets) if settings.hub_api_url else None
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None
        self._count_idle()

    async def serve(self, listener: socket.socket, file: SocketFile) -> bool:
        """Serve until told to stop, by a message, a signal, or loneliness; whether there were
        sessions then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        server = await self._loop.create_unix_server(
            lambda: Connection(self), sock=listener, backlog=BACKLOG_CONNECTIONS
        )
        self._look_for(file)
        await self._stopped.wait()
        server.close()
        was_in_use = self.service.has_sessions
        for connection in tuple(self._connections):
            connection.close()
        return was_in_use

    def _look_for(self, file: SocketFile) -> None:
        """A broker that nobody finds any more ends, so that there can be one that is found:
        sessions bring what they have to the next."""
        if file.is_there():
            self._loop.call_later(SOCKET_LOOK_SECONDS, self._look_for, file)
        else:
            log.warning("the socket %s is gone, so this broker ends", file.path)
            self._stopped.set()

    def identity(self, uid: int) -> Identity:
        """Whom a process stands for that has said nothing yet."""
        return NOBODY if self._door is not None else of_process(uid, time.monotonic())

    def identify(self, connection: Connection, hello: Hello) -> asyncio.Task[Identity]:
        assert self._door is not None  # or everybody is known from the start
        return self._loop.create_task(self._door.identify(connection, hello, time.monotonic()))

    def keep_checking(self, connection: Connection, hello: Hello) -> asyncio.Task[None]:
        """Whoever stays connected has no rights that the hub has taken by now."""
        return self._loop.create_task(self._keep_checking(connection, hello))

    async def _keep_checking(self, connection: Connection, hello: Hello) -> None:
        """Raises NotPermitted as soon as the hub does not know the token any more."""
        assert self._door is not None
        while True:
            await asyncio.sleep(max(self.settings.hub_cache_seconds, LEAST_CHECK_SECONDS))
            with contextlib.suppress(BrokerUnavailable, LimitExceeded):  # nobody can say now
                identity = await self._door.identify(connection, hello, time.monotonic())
                connection.stands_for(identity)

    def attend(self, channel: Channel, reader: Callable[[], None]) -> None:
        self._loop.add_reader(channel.fileno(), reader)

    def forget(self, channel: Channel) -> None:
        self._loop.remove_reader(channel.fileno())

    def joined(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._idle is not None:
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
            self._count_idle()

    def _count_idle(self) -> None:
        if seconds := self.settings.idle_exit_seconds:
            self._idle = self._loop.call_later(seconds, self._stopped.set)

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
        if not self._connections:
            return
        now = time.monotonic()
        try:
            for connection in self._connections:
                connection.abort_if_orphaned()
            self.service.tick(now)
            self.happened(now)
        finally:  # whatever goes wrong in one, the next comes
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _close_if_silent(self, connection: Connection) -> None:
        if connection.is_silent:
            connection.close()


class SocketFile:
    """The file that a broker has just made at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = path.stat().st_ino

    def is_there(self) -> bool:
        """Whether it is this one still; where that cannot be seen, it has not been taken away."""
        try:
            return self.path.stat().st_ino == self._number
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def remove(self) -> None:
        """Never the file of a broker that came afterwards."""
        if self.is_there():
            self.path.unlink(missing_ok=True)


def run(settings: Settings) -> None:
    """Run a broker until it ends. Raises AlreadyRunning where one has the socket."""
    path = checked(socket_path(settings))
    rulebook = RulebookFile(settings.rulebook)  # before there is anything of this broker
    make_directory(path.parent, is_shared(settings))
    _raise_descriptor_limit()
    with _open_lock(path.with_suffix(".lock")) as lock:
        was_in_use = _own_socket(lock, path)
        listener = _listen(path, settings)
        file = SocketFile(path)
        log.info("broker %d listens on %s", os.getpid(), path)
        accounts = Accounts.of(settings)
        is_in_use = asyncio.run(_serve(settings, rulebook, accounts, listener, file, was_in_use))
        accounts.close()
        file.remove()
        if not is_in_use:
            lock.truncate(0)
    log.info("broker %d ends", os.getpid())


async def _serve(
    settings: Settings,
    rulebook: RulebookFile,
    accounts: Accounts,
    listener: socket.socket,
    file: SocketFile,
    was_in_use: bool,
) -> bool:
    """Whether there were sessions at the end, as there may have been at that of the one before:
    they come to the next broker, which must hear first who of them has a turn."""
    grants_from = time.monotonic() + settings.recovery_seconds if was_in_use else 0.0
    service = Service(
        settings,
        find_all(settings),
        started=time.time(),
        grants_from=grants_from,
        rulebook=rulebook,
        accounts=accounts,
    )
    is_in_use = await Endpoint(settings, service).serve(listener, file)
    service.close(time.monotonic())
    return is_in_use


def _open_lock(path: Path) -> IO[str]:
    """For nobody else, who could take the lock as well; and no link to a file of somebody's, which
    would be emptied."""
    try:
        return open(
            path, "a+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)
        )
    except OSError as error:
        raise BrokerUnavailable(f"the lock {path} cannot be opened: {error.strerror}") from None


def _own_socket(lock: IO[str], path: Path) -> bool:
    """Take the lock for this process's life; True if the last owner may have left sessions."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"a broker runs on {path} already") from None
    lock.seek(0)
    was_in_use = bool(lock.read())
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return was_in_use


def _listen(path: Path, settings: Settings) -> socket.socket:
    """Under the lock a socket file that lies there is a dead broker's.

    Nobody can connect before it listens, and by then it has its group and mode.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(mask)
    try:
        if settings.socket_group:
            _give_to_group(path, settings.socket_group)
        path.chmod(int(settings.socket_mode, 8))
    except BaseException:
        path.unlink()
        raise
    listener.setblocking(False)
    return listener


def _give_to_group(path: Path, group: str) -> None:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise InvalidValue(f"there is no Unix group {group!r} (setting socket_group)") from None
    except PermissionError:
        raise InvalidValue(
            f"the socket cannot be given to the group {group}: whoever runs the broker is not in it"
        ) from None


def _computes(thread: Path) -> bool:
    """By its state and flags; the name before them may contain anything but ends at the last )."""
    try:
        fields = thread.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & EXITING


def _raise_descriptor_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
