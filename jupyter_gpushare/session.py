"""This process's session: it asks for turns, gives them back, and survives a lost broker.

The fast path is `enter` and `boundary` while this process holds its turn and nobody else waits: no
message, one non-blocking look at the socket per boundary. All else is under one lock. A second
thread sleeps until the connection hangs up, so that a broker that comes back learns at once who
holds the turn, even while user code computes for minutes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from . import remaining
from .client import Client
from .errors import BrokerUnavailable, ConnectionLost, GpuShareError, ProtocolError, from_code
from .mailbox import Mailbox
from .protocol import (
    Change,
    Close,
    Demand,
    Error,
    Finish,
    Grant,
    Message,
    Open,
    Opened,
    Report,
    Request,
    ToClient,
    Wait,
    Yield,
)
from .settings import Settings, load

if TYPE_CHECKING:
    import psutil

FIRST_RETRY_SECONDS = 0.02
LAST_RETRY_SECONDS = 1.0
HANG_UP_LOOK_MILLISECONDS = 5_000  # only in case that a descriptor was closed and reused in between


class Meter(Protocol):
    """Learns the demand of this process. `how` is one sentence for people."""

    how: str

    def begin(self) -> None:
        """An iteration begins."""

    def end(self) -> None:
        """An iteration ended."""

    def demand(self) -> Demand:
        """What was learned so far."""


class WholeProcess:
    """The meter where nothing better is known: all memory of the process counts as persistent."""

    how = "the whole process counts as persistent memory"

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def __init__(self) -> None:
        self._process: psutil.Process | None = None

    def demand(self) -> Demand:
        if self._process is None:
            import psutil  # not where PyTorch is measured

            self._process = psutil.Process()
        return Demand(self._process.memory_info().rss, 0, measured=True)


class Session:
    """A notebook or script at the broker. Times are seconds, sizes bytes."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        name: str,
        device: str | None = None,
        weight: float = 1.0,
        priority: int = 0,
        remaining_iterations: int | None = None,
    ) -> None:
        self._settings = settings or load()
        self.id = secrets.token_hex(6)
        self.name = name
        self.device = device or self._settings.device
        self.weight = weight
        self.priority = priority
        self.paused = False
        self.on_wait: Callable[[Wait | None], None] = lambda wait: None
        self.meter: Meter = WholeProcess()
        self.settle: Callable[[], None] = lambda: None  # returns when the device has done its work
        self.iterations = 0
        self.device_seconds = 0.0
        self.waited_seconds = 0.0
        self.holding = False
        self._last_iteration = _plus(0, remaining_iterations)  # where a declared end lies
        self._turn = 0
        self._waiting = False
        self._asked: Yield | None = None  # to end this turn at the next boundary
        self._mailbox = Mailbox()
        self._since = 0.0  # when this turn, or this wait, began
        self._reported = 0
        self._next_report = 0.0
        self._refusal: GpuShareError | None = None
        self._trouble = ""  # why the connection could not be restored
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._client: Client | None = None

    # --- life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or start the broker and register. Raises GpuShareError with the reason."""
        with self._lock:
            self._connect()
        _living.add(self)
        threading.Thread(target=self._keep, name="gpushare-keeper", daemon=True).start()

    def close(self) -> None:
        """Leave the broker; the place is free at once. A thread that waits goes on without a turn.

        A process that ends need not call this: its socket ends with it.
        """
        self._closed.set()
        _living.discard(self)
        if self._lock.acquire(blocking=False):
            try:
                self._say_goodbye()
            finally:
                self._lock.release()
        if (client := self._client) is not None:
            client.close()
        self._mailbox.close()

    def _say_goodbye(self) -> None:
        self._stop_holding()
        if self._client is not None:
            with contextlib.suppress(GpuShareError):  # the broker forgets whoever is gone
                self._client.ask(Close())

    def change(
        self,
        *,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> None:
        """Change this session live; None leaves a value. Raises GpuShareError when refused."""
        with self._lock:
            if not self._restored():
                raise BrokerUnavailable("the broker is away, so nothing was changed: try again")
            self._connected().ask(Change(None, weight, priority, paused), aside=self._take)
            self.weight = self.weight if weight is None else weight
            self.priority = self.priority if priority is None else priority
            self.paused = self.paused if paused is None else paused

    def declare(self, remaining_iterations: int | None) -> None:
        """Tell the broker how many iterations are still to come; None: nobody knows."""
        self._last_iteration = _plus(self.iterations, remaining_iterations)
        with self._lock:
            self._say(self._report(time.monotonic()))

    # --- turns -------------------------------------------------------------------------------

    def enter(self) -> None:
        """An iteration begins: return when this process holds the turn.

        Interruptible; an interrupt withdraws the request. Raises DoesNotFit where the measured
        demand is larger than the device.
        """
        __tracebackhide__ = True
        if self.holding or self._closed.is_set():
            return
        with self._lock:
            if self.holding:  # another thread has obtained it
                return
            self._raise_refusal()
            try:
                self._begin_wait()
                with contextlib.suppress(ConnectionLost):  # then the next connection asks
                    self._connected().send(Request(self._turn))
                while not self.holding and not self._closed.is_set():
                    self._await_news()
            except BaseException:
                self._withdraw()
                raise
            finally:
                self._end_wait()

    def boundary(self) -> None:
        """An iteration ended: count it, and give the turn away if the broker asked for it."""
        self.iterations += 1
        if not self.holding or not self._lock.acquire(blocking=False):
            return  # whoever has the lock is restoring the connection and needs no look
        try:
            self._look()
            if self._asked is not None:
                self._connected().send(self._part())
            if (now := time.monotonic()) >= self._next_report:
                self._say(self._report(now))
        except (ConnectionLost, ProtocolError):
            self._drop_connection()  # the keeper restores it; training goes on
        finally:
            self._lock.release()

    def leave(self) -> None:
        """Give the turn back now, as at the end of a cell, and report what is not reported yet."""
        if self.holding or self._reported != self.iterations:
            with self._lock:
                self._give_back()
                self._say(self._report(time.monotonic()))

    def _look(self) -> None:
        """Take what has come, without waiting."""
        while self._client is not None and self._client.has_news():
            self._take(self._client.receive())

    def _begin_wait(self) -> None:
        self._since = time.monotonic()
        self._turn += 1
        self._waiting = True
        self._asked = None

    def _end_wait(self) -> None:
        self._waiting = False
        self.on_wait(None)

    def _await_news(self) -> None:
        try:
            news = self._connected().receive_or_find(self._mailbox)
            if news is not None:
                self._take(news)
        except (ConnectionLost, ProtocolError):
            self._restore_while_waiting()
        if not self.holding:
            self._raise_refusal()

    def _restore_while_waiting(self) -> None:
        self._drop_connection()
        for pause in _pauses():
            if self._closed.is_set() or self._restored():
                return
            waited = time.monotonic() - self._since
            self.on_wait(
                Wait(self._turn, 1, waited, f"waits for the broker ({self._trouble}); trying again")
            )
            time.sleep(pause)

    def _withdraw(self) -> None:
        """After an interrupt nothing of the wait is left, whether or not a grant is on its way."""
        self._note_waited()
        self._stop_holding()
        self._say(Finish(self._turn))

    def _give_back(self) -> None:
        if self.holding:
            self._say(self._part())

    def _part(self) -> Finish:
        """This process uses the device no more, and its successor may; what to tell the broker."""
        self.settle()
        if self._asked is not None and self._asked.successor is not None:
            self._mailbox.send(self._asked.successor)
        self._stop_holding()
        return Finish(self._turn)

    def _say(self, message: Message) -> None:
        """Send; if the connection is lost, the next one's registration says the same."""
        try:
            self._connected().send(message)
        except ConnectionLost:
            self._drop_connection()

    def _stop_holding(self) -> None:
        if self.holding:
            self.holding = False
            self.device_seconds += time.monotonic() - self._since

    def _note_waited(self) -> None:
        now = time.monotonic()
        self.waited_seconds += now - self._since
        self._since = now

    # --- what the broker says ----------------------------------------------------------------

    def _take(self, message: ToClient) -> None:
        """React to one message; stale turn numbers belong to withdrawn requests and are ignored."""
        if isinstance(message, Grant):
            if message.turn == self._turn and self._waiting:
                self._note_waited()
                self.holding = True
        elif isinstance(message, Yield):
            if message.turn == self._turn and self.holding:
                self._asked = message
        elif isinstance(message, Wait):
            if message.turn == self._turn and self._waiting:
                self.on_wait(message)
        elif isinstance(message, Error):
            self._refusal = from_code(message.code, message.message)
            self._asked = Yield(self._turn)  # then end at the next boundary

    def _raise_refusal(self) -> None:
        """Said once: the next cell tries again, since the user may have made room."""
        __tracebackhide__ = True
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _report(self, now: float) -> Report:
        done = self.iterations - self._reported
        self._reported = self.iterations
        self._next_report = now + self._settings.report_seconds
        return Report(done, self.meter.demand(), self._remaining())

    def _remaining(self) -> int | None:
        if self._last_iteration is not None:
            return max(0, self._last_iteration - self.iterations)
        return remaining.from_tqdm()

    # --- connection --------------------------------------------------------------------------

    def _connected(self) -> Client:
        if self._client is None:
            raise ConnectionLost("the broker is away")
        return self._client

    def _connect(self) -> None:
        """Open a connection and register, with what this session holds or waits for."""
        client = Client.connect(self._settings, self.name)
        try:
            answer = client.ask(self._registration())
            if not isinstance(answer, Opened):
                raise ProtocolError(f"Opened was due, {type(answer).__name__} came")
        except BaseException:
            client.close()
            raise
        self.device = answer.device
        self._asked = None  # whoever was named, was named to the connection before
        self._reported = self.iterations
        self._client = client

    def _registration(self) -> Open:
        return Open(
            id=self.id,
            name=self.name,
            device=self.device,
            weight=self.weight,
            priority=self.priority,
            demand=self.meter.demand() if self.iterations else Demand(),
            remaining_iterations=self._remaining(),
            turn=self._turn,
            holding=self.holding,
            waiting=self._waiting and not self.holding,
            paused=self.paused,
            device_seconds=self.device_seconds,
            waited_seconds=self.waited_seconds,
            iterations=self.iterations,
            mailbox=self._mailbox.name,
            key=self._mailbox.key,
        )

    def _drop_connection(self) -> None:
        """Forget a connection that ended; what was promised on it is said again at the next."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _restored(self) -> bool:
        """Whether there is a connection, after one try to get one."""
        if self._client is None:
            try:
                self._connect()
            except GpuShareError as error:
                self._trouble = str(error)
                return False
        return True

    def _keep(self) -> None:
        """Sleep until the connection hangs up, restore it, and so on until the session closes."""
        while not self._closed.is_set():
            self._await_hang_up()
            for pause in _pauses():
                with self._lock:
                    if self._closed.is_set() or self._restored():
                        break
                self._closed.wait(pause)

    def _await_hang_up(self) -> None:
        """Only hang-ups are waited for: messages are left to the thread that runs iterations."""
        poll = select.poll()
        with self._lock:
            client = self._client
            descriptor = -1 if client is None else client.fileno()
            if descriptor < 0:  # none, or closed by another thread just now
                return
            poll.register(descriptor, select.POLLRDHUP)
        while not poll.poll(HANG_UP_LOOK_MILLISECONDS) and self._client is client:
            pass
        with self._lock:
            if self._client is client:
                self._drop_connection()

    def _forget(self) -> None:
        """In a forked child: the session is the parent's; only our copy of its socket goes.

        Locks are made anew, since a thread that no longer exists may have held them.
        """
        self._closed = threading.Event()
        self._closed.set()
        self._lock = threading.RLock()
        self.holding = False
        if self._client is not None:
            self._client.abandon()
        self._mailbox.close()


def _plus(done: int, more: int | None) -> int | None:
    return None if more is None else done + more


def _pauses() -> Iterator[float]:
    """Seconds between tries: doubling, up to LAST_RETRY_SECONDS, without end."""
    pause = FIRST_RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LAST_RETRY_SECONDS)


_living: set[Session] = set()


def _forget_all() -> None:
    for living in tuple(_living):
        living._forget()
    _living.clear()


os.register_at_fork(after_in_child=_forget_all)
