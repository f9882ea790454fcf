"""Sockets and credentials: the one event loop of the broker, and nothing else in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from ...devices import find_all
from ...errors import BrokerUnavailable, InvalidValue, LimitExceeded
from ...settings import Settings, socket_path
from ...wire.fd_channel import Channel
from ...wire.launch import checked, is_shared, make_directory
from ...wire.messages import Hello
from .. import validation
from ..access.authentication import Authentication
from ..access.identity import ANONYMOUS, Identity, of_process
from ..accounting.accounts import AccountBook
from ..admin.live_changes import LiveChanges
from ..admin.rulebook_file import RulebookFile
from ..grants.recovery import RecoveryJournal
from ..service import Service
from .clock import SteadyClock
from .connection import Connection
from .rate_limit import RateLimiter, SilentConnections
from .socket_file import SocketFile, leave_word, listen, open_journal, open_lock, own_socket

TICK_SECONDS = 0.1
SOCKET_LOOK_SECONDS = 0.1  # between two checks that the socket's file exists
STUCK_SECONDS = 5.0  # processor time without a check: far more than any message takes
END_SECONDS = 1.0  # for the end of a broker that has no memory left
RECEIVE_BYTES = 1 << 16
GREETING_SECONDS = 10.0  # a connection that has said nothing by then is no client
LEAST_CHECK_SECONDS = 1.0  # between two checks that the hub still knows a connection's token
ACCEPTED_AT_ONCE = 8  # connections; then the connected ones are served
BACKLOG_CONNECTIONS = 256  # connections that wait to be accepted

log = logging.getLogger("jupyter_gpushare.broker")


class Endpoint:
    """Listens, keeps the deadlines of the service, and ends by itself if no client is connected."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        clock: SteadyClock | None = None,
        end_after: Callable[..., None] = lambda seconds, timer=0: None,
    ) -> None:
        """`end_after` ends the process if it hangs; the default does nothing."""
        self._end_after = end_after
        self._loop = asyncio.get_running_loop()
        self._clock = clock or SteadyClock()
        self.settings = settings
        self.service = service
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.rate_limiter = RateLimiter(settings.max_connections_per_user, self._loop.call_later)
        self.silent_connections = SilentConnections(settings.max_connections_per_user)
        self._authentication = (
            Authentication(settings, service.tickets) if settings.hub_api_url else None
        )
        self._connections: set[Connection] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._is_without_memory = False
        self._idle: asyncio.TimerHandle | None = None
        self._count_idle()

    async def serve(self, listener: socket.socket, file: SocketFile) -> bool:
        """Serve until a message, a signal or the lack of clients ends the broker. Return whether
        there were sessions then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        self._loop.set_exception_handler(self._failed)
        server = await self._loop.create_unix_server(
            lambda: Connection(self), sock=listener, backlog=ACCEPTED_AT_ONCE
        )
        listener.listen(BACKLOG_CONNECTIONS)
        self._look_for(file)
        await self._stopped.wait()
        server.close()
        was_in_use = self.service.has_sessions
        self.service.end()
        for connection in tuple(self._connections):
            connection.close()
        return was_in_use

    def _failed(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        self.end_without_memory(about.get("exception"))
        loop.default_exception_handler(about)

    def end_without_memory(self, error: object) -> None:
        """End if this error is a lack of memory. A decision such as a grant or a preemption request
        is sent once, and may be lost; the next broker asks the sessions for their turns. A timer
        ends the process, since the event that should stop the loop may be lost, too."""
        if not isinstance(error, MemoryError):
            return
        if not self._is_without_memory:  # later errors leave the timer as it is
            self._is_without_memory = True
            self._end_after(END_SECONDS, signal.ITIMER_REAL)
        self._stopped.set()
        log.error("this broker has no memory left, so it ends")

    def _look_for(self, file: SocketFile) -> None:
        """End if clients cannot find this broker any more, so that another one can start. The
        sessions take their turns to the next broker."""
        if self._stopped.is_set():
            return
        self._end_after(STUCK_SECONDS)
        if file.is_there():
            self._loop.call_later(SOCKET_LOOK_SECONDS, self._look_for, file)
        else:
            log.warning("the socket %s is gone, so this broker ends", file.path)
            self._stopped.set()

    def identity(self, uid: int) -> Identity:
        """The user that a process stands for before its Hello."""
        return ANONYMOUS if self._authentication is not None else of_process(uid, self.now())

    def identify(self, connection: Connection, hello: Hello) -> asyncio.Task[Identity]:
        assert self._authentication is not None  # without a hub no user is looked up
        return self._loop.create_task(self._authentication.identify(connection, hello, self.now()))

    def keep_checking(self, connection: Connection, hello: Hello) -> asyncio.Task[None]:
        """Check the token again and again, so that a connected client loses the rights that the hub
        takes."""
        return self._loop.create_task(self._keep_checking(connection, hello))

    async def _keep_checking(self, connection: Connection, hello: Hello) -> None:
        """Raises NotPermitted once the hub does not know the token any more."""
        assert self._authentication is not None
        while True:
            await asyncio.sleep(max(self.settings.hub_cache_seconds, LEAST_CHECK_SECONDS))
            with contextlib.suppress(BrokerUnavailable, LimitExceeded):  # the hub is silent now
                identity = await self._authentication.identify(connection, hello, self.now())
                for each in (connection, *self.let_in_by(connection)):
                    self._follow(each, identity._replace(may_issue_tokens=each is connection))

    def let_in_by(self, server: Connection) -> list[Connection]:
        """The connected kernels that came with its one-time tokens."""
        return [each for each in self._connections if each.issuer is server]

    def _follow(self, connection: Connection, identity: Identity) -> None:
        if identity != (before := connection.identity):
            connection.stands_for(identity)
            self.service.follow_identity(connection, before)

    def soon(self, call: Callable[[], None]) -> None:
        """Make the call after the present event."""
        self._loop.call_soon(call)

    def attend(self, channel: Channel, reader: Callable[[], None]) -> None:
        self._loop.add_reader(channel.fileno(), reader)

    def forget(self, channel: Channel) -> None:
        self._loop.remove_reader(channel.fileno())

    def now(self) -> float:
        """The broker's time. Without clients nothing reads the clock ten times a second, so a long
        pause is no leap then."""
        return self._clock() if self._connections else self._clock.resume()

    def joined(self, connection: Connection) -> None:
        self.now()  # a leap before this moment must not be charged to the new client
        self._connections.add(connection)
        if self._idle is not None:
            self._idle.cancel()
        connection.timer = self._loop.call_later(
            GREETING_SECONDS, self._close_if_silent, connection
        )
        if self._ticking is None:
            self._tick()

    def left(self, connection: Connection) -> None:
        now = self.now()
        self._connections.discard(connection)
        if connection.timer is not None:
            connection.timer.cancel()  # otherwise it would keep the connection in memory
        self.service.lost(connection, now)
        self.happened(now)
        if not self._connections:
            self._count_idle()

    def _count_idle(self) -> None:
        if seconds := self.settings.idle_exit_seconds:
            self._idle = self._loop.call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        self.service.changes.clear()  # the next broker begins as the settings say
        self._stopped.set()

    def happened(self, now: float) -> None:
        """Stop if the service stops, and set the alarm to its next deadline. Called after each
        event."""
        if self.service.is_stopping:
            self._stopped.set()
        due = self.service.next_event(now)
        if due is None:
            return
        due = self._clock.when(due)
        if self._alarm is None or due < self._alarm.when():
            self._set_alarm(due)

    def _set_alarm(self, due: float) -> None:
        """`due` is of asyncio's clock, time.monotonic. An alarm that rings early is set again."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.now()
        self.service.pass_time(now)
        self.happened(now)

    def _tick(self) -> None:
        """Tick, and once more after the last connection has left, to release its memory."""
        self._ticking = None
        now = self.now()
        if not self._connections:
            self.service.all_have_left()
            return
        try:
            for connection in tuple(self._connections):
                connection.abort_if_orphaned()
                connection.end_if_half_closed()
            self.service.tick(now)
            self.happened(now)
        finally:  # a failed tick must not prevent the next one
            self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _close_if_silent(self, connection: Connection) -> None:
        if connection.is_silent:
            connection.close()


def end_after(seconds: float, timer: int = signal.ITIMER_PROF) -> None:
    """Let the system end this process after these seconds, unless this is called again before. The
    default timer counts processor time; ITIMER_REAL also counts time in which the process sleeps or
    is stopped. Python can hang: in 3.11 an exception whose handler finds no memory is raised there
    again and again. A hanging broker keeps the lock of the socket, so no other one could start."""
    signal.setitimer(timer, seconds)


def run(settings: Settings) -> None:
    """Run a broker until it ends. Raises AlreadyRunning if another one has the socket."""
    path = checked(socket_path(settings))
    rulebook = RulebookFile(settings.rulebook)  # first: a wrong file must leave no trace
    _check_policy(settings.policy)
    make_directory(path.parent, is_shared(settings))
    _raise_descriptor_limit()
    with open_lock(path.with_suffix(".lock")) as lock, open_journal(path) as journal_file:
        was_in_use = own_socket(lock, path)
        listener = listen(path, settings)
        file = SocketFile(path)
        log.info("broker %d listens on %s", os.getpid(), path)
        accounts = AccountBook.of(settings)
        journal = RecoveryJournal(journal_file.fileno())
        changes = LiveChanges(settings, path.with_suffix(".changes"))
        changes.report()
        was_in_use |= bool(journal.missing)
        is_in_use = asyncio.run(
            _serve(settings, rulebook, accounts, journal, changes, listener, file, was_in_use)
        )
        accounts.close()
        if not is_in_use:
            lock.truncate(0)
        elif not file.is_there():
            leave_word(path, settings, journal, changes)
        file.remove()
    log.info("broker %d ends", os.getpid())


async def _serve(
    settings: Settings,
    rulebook: RulebookFile,
    accounts: AccountBook,
    journal: RecoveryJournal,
    changes: LiveChanges,
    listener: socket.socket,
    file: SocketFile,
    was_in_use: bool,
) -> bool:
    """Serve; return whether there were sessions at the end. `was_in_use`: the previous broker may
    have had sessions. This broker must first hear which of them have a turn."""
    clock = SteadyClock()
    grants_from = clock() + settings.recovery_seconds if was_in_use else 0.0
    service = Service(
        settings,
        find_all(settings),
        started=time.time(),
        grants_from=grants_from,
        rulebook=rulebook,
        accounts=accounts,
        journal=journal,
        changes=changes,
    )
    is_in_use = await Endpoint(settings, service, clock, end_after).serve(listener, file)
    service.close(clock())
    return is_in_use


def _check_policy(name: str) -> None:
    try:
        validation.check_policy(name)
    except InvalidValue as error:
        raise InvalidValue(f"a setting is wrong: {error}") from None


def _raise_descriptor_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
