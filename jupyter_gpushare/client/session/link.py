"""The link of a session to the broker: connect, register, send, receive, and reconnect.

All messages are sent and received under `lock`. A connection that ends is dropped and made again,
by the thread that waits for the broker or by the keeper. The registration on the new connection
says what the session holds or waits for, so no lost message has to be sent again.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from ...errors import ConnectionLost, GpuShareError, ProtocolError
from ...settings import Settings
from ...wire.client import Client, LaneMemory
from ...wire.framing import ToClient
from ...wire.messages import ALONE, Close, Grant, Message, Open, Opened, Rests

FIRST_RETRY_SECONDS = 0.02
LAST_RETRY_SECONDS = 0.25  # a new broker waits twice that for the sessions that have turns
LOOK_SECONDS = 0.05  # at most, before another look at what another thread may have done
GOODBYE_SECONDS = 2.0  # a broker that hangs finds the ended connection later


class Registers(Protocol):
    """The first message of a session on each connection."""

    def message(self) -> Open: ...

    def accept(self, answer: Opened) -> None:
        """Apply the answer: the broker knows the session now. Raises ProtocolError."""


class Link:
    """The link of one session. `lock` can be taken again by the thread that has it."""

    _registration: Registers
    take: Callable[[ToClient], None]  # takes what the broker sends without being asked
    _watch: Callable[[int], None]  # gets the descriptor of the connection; -1: there is none
    _stop_holding: Callable[[], object]  # ends the turn after an interrupt

    def __init__(self, settings: Settings, program: str) -> None:
        self._settings = settings
        self._program = program
        self.client: Client | None = None  # the present connection
        self.lock = threading.RLock()
        self.is_closed = False
        self.rests = False  # the broker does not know the session until its next cell
        self.is_restoring = False  # the keeper reconnects and has the lock meanwhile
        self.trouble = ""  # why the last try to reconnect failed

    def serve(
        self,
        *,
        registration: Registers,
        take: Callable[[ToClient], None],
        watch: Callable[[int], None],
        stop_holding: Callable[[], object],
    ) -> None:
        """Set the parts of the session that the link works for, before `connect`. The link calls
        all of them with the lock."""
        self._registration = registration
        self.take = take
        self._watch = watch
        self._stop_holding = stop_holding

    # --- connect -----------------------------------------------------------------------------

    def connected(self) -> Client:
        """Return the connection. Raises ConnectionLost if there is none."""
        if self.client is None:
            raise ConnectionLost("the broker is away")
        return self.client

    def connect(self) -> None:
        """Open a connection and register. Raises GpuShareError with the reason."""
        client = Client.connect(self._settings, self._program)
        try:
            self._register(client)
        except BaseException:
            client.close()
            raise
        self.client = client
        self._watch(client.fileno())
        if self.is_closed:  # closed meanwhile: `close` has not seen this connection
            self.drop()

    def _register(self, client: Client) -> None:
        answer = client.ask(self._registration.message(), aside=self.take)
        if not isinstance(answer, Opened):
            raise ProtocolError(f"Opened was due, {type(answer).__name__} came")
        self._registration.accept(answer)
        self.rests = False

    def rest(self, paged_out_bytes: int) -> None:
        """Release the session's place at the broker until `end_rest`."""
        self.say(Rests(paged_out_bytes))
        self.rests = True

    def end_rest(self) -> None:
        """Register for a place again. Raises the error that the broker answered."""
        with self._in_order():
            self._register(self.connected())

    def drop_with_rest(self) -> None:
        """Drop the connection; the rest ends with it, since the next connection registers."""
        self.drop()
        self.rests = False

    def drop(self) -> None:
        """Forget a connection that ended; the next registration repeats what was sent on it."""
        if self.client is not None:
            self.client.close()
            self._watch(-1)
            self.client = None

    def drop_if(self, client: Client | None) -> None:
        """Drop that connection, unless another one has replaced it."""
        with self.lock:
            if self.client is client:
                self.drop()

    def restored(self) -> bool:
        """Return whether there is a connection, after one try to reconnect."""
        if self.client is None:
            try:
                with self._in_order():  # the broker may know of a turn by then
                    self.connect()
            except GpuShareError as error:
                self.note_trouble(str(error))
                return False
        return True

    def restored_aside(self) -> bool:
        """Like `restored`, for the keeper, while other threads may continue. Return True if the
        link is closed."""
        self.is_restoring = True
        try:
            with self.lock:
                return self.is_closed or self.restored()
        finally:
            self.is_restoring = False

    def note_trouble(self, why: str) -> None:
        """Note why the connection could not be restored; a thread that waits for it tells the
        user."""
        self.trouble = why

    # --- send and hear -----------------------------------------------------------------------

    def say(self, message: Message) -> None:
        """Send a message. Nothing is sent if the connection is lost, or if the session rests, so
        that the broker does not know it: the next registration says the same."""
        if self.rests:
            return
        try:
            self.connected().send(message)
        except ConnectionLost:
            self.drop()

    def ask(self, message: Message, seconds: float = math.inf) -> None:
        """Send a request and wait until it is done, at most `seconds`. Raises the error that the
        broker answered."""
        with self._in_order():
            self.connected().ask(message, aside=self.take, seconds=seconds)

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Wrap a request or a registration. If an interrupt comes during the wait for its answer,
        end the connection, since that answer would be taken for the answer to the next request."""
        try:
            yield
        except GpuShareError:
            raise
        except BaseException:
            self.break_off()
            raise

    def break_off(self) -> None:
        """End the connection after an interrupt, and the turn, which another session may get from
        then on. Survivors stay in the lane: the broker leaves that memory to this process."""
        self._stop_holding()
        self.drop()

    def look(self) -> None:
        """Take all messages that have come, without waiting."""
        while self.client is not None and self.client.has_news():
            self.take(self.client.receive())

    @staticmethod
    def sleep(client: Client, seconds: float) -> None:
        """Sleep until something has come on the connection, at most `seconds`; without the lock."""
        if (descriptor := client.fileno()) >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * seconds)

    def await_message(self) -> None:
        """Wait for one message, and take it."""
        self.take(self.connected().receive())

    def lane_of(self, grant: Grant) -> tuple[LaneMemory | None, int]:
        """Return the memory of the lane that a grant is for, and the bytes to use of it; None and 0
        if the grant has no lane that is known here."""
        known = self.connected().lane_memory
        is_known = grant.memory != 0 and grant.memory == known.number
        known.end = grant.end if is_known else ALONE
        return (known, grant.bytes) if is_known else (None, 0)

    def release_lane(self, number: int) -> None:
        """Close the descriptor of this memory of a lane, if there is one."""
        self.connected().release_lane(number)

    # --- end ---------------------------------------------------------------------------------

    def say_goodbye(self) -> None:
        if self.client is not None:
            with contextlib.suppress(GpuShareError):  # the broker forgets a session that has ended
                self.client.ask(Close(), seconds=GOODBYE_SECONDS)

    def close(self) -> None:
        """End the connection, from any thread, even while another thread has the lock and waits.
        That thread may be about to poll the descriptor, and the number of a closed descriptor is
        soon that of another file. So that thread or the keeper closes the descriptor, under the
        lock."""
        if (client := self.client) is not None:
            client.shut_down()
        if self.lock.acquire(blocking=False):
            try:
                self.drop()
            finally:
                self.lock.release()

    def forget(self) -> None:
        """Close this copy of the socket in a forked child; the session belongs to the parent.

        The lock is replaced, since a thread that no longer exists may have held it.
        """
        self.is_closed = True
        self.lock = threading.RLock()
        if self.client is not None:
            self.client.abandon()


def pauses() -> Iterator[float]:
    """Yield the seconds between tries without end: they double, up to LAST_RETRY_SECONDS."""
    pause = FIRST_RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LAST_RETRY_SECONDS)
