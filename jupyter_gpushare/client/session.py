"""This process's session: it asks for turns, gives them back, and survives a lost broker.

The fast path is `enter` and `boundary` while this process holds its turn and nobody else waits: no
message, one non-blocking look at the socket per boundary. All else is under one lock. Before it,
`entering` is taken to begin an iteration, and to give the turn back: so no iteration begins while
the lane is emptied for the next session.

A second thread, the keeper, notices when the connection hangs up, so that a broker that comes back
learns at once who holds the turn, even while user code computes for minutes. It also gives the turn
back between two iterations: user code may do something else there for minutes. Where it does that
with Python's lock, so that the keeper stands still as well, the turn goes without Python, by a
thread of `IdleTurn`; here that is found when Python goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

from .._core import IdleTurn
from ..devices import visible
from ..errors import (
    BrokerUnavailable,
    Cancelled,
    ConnectionLost,
    DoesNotFit,
    GpuShareError,
    NoRoom,
    OverQuota,
    ProtocolError,
    from_code,
)
from ..format import duration
from ..settings import Settings, load, socket_path
from ..wire.client import ANSWER_SECONDS, Client
from ..wire.framing import (
    ToClient,
    encode,
)
from ..wire.mailbox import Mailbox
from ..wire.messages import (
    Busy,
    Change,
    Close,
    Demand,
    Error,
    Finish,
    GiveBack,
    Grant,
    Keep,
    Message,
    NewKey,
    Notice,
    Open,
    Opened,
    PagedOut,
    PageIn,
    PageOut,
    RenewKey,
    Report,
    Request,
    Rest,
    Rests,
    StaysIn,
    Trim,
    Wait,
    Withdraw,
    Yield,
    sealed,
)
from . import end_of_wait, options, progress
from .memory import Memory, ProcessOnGpu, ProcessOnGpus, WholeProcess
from .process_groups import Membership, host

FIRST_RETRY_SECONDS = 0.02
LAST_RETRY_SECONDS = 0.25  # a new broker waits twice as long for those who have turns
HANG_UP_LOOK_MILLISECONDS = 5_000  # only in case that a descriptor was closed and reused in between
IDLE_LOOK_MILLISECONDS = 50  # whether the turn is wanted, where no boundary comes to look
NO_ROOM_RETRY_SECONDS = 1.0  # of the keeper, where there was no room for what is alive in the lane
ON_GPU = "a cell runs, and a GPU cannot wait for memory that another thread of it may use"
JOINED = (
    "This process belongs to a process group of torch.distributed whose first member on this device"
    " takes the turns: it computes in that one's turns, takes none of its own, and all of its"
    " memory counts, until the group is destroyed"
)
JOINS = "it computes in the turns of another member of its process group"
OLD_BROKER = (
    "this broker gives one device at a time, being older than this notebook: end it with"
    " `jupyter gpushare broker --stop`, and a new one starts"
)
GOODBYE_SECONDS = 2.0  # a broker that stands still finds the connection ended, later
KEEPER_END_SECONDS = 2.0  # that the end of a process waits for it
AT_END_OF_TURN = 0.1  # of the time between two reports, as in csrc/core/simulation.cpp
UNCOUNTED_BYTES = 1 << 20  # who has less on the device may leave it there and rest
OF_A_PLACE = (PageOut, PageIn, GiveBack, Rest)  # concern memory that counts at the broker


class Session:
    """A notebook or script at the broker. Times are seconds, sizes bytes.

    `name` is what others see, at most 200 characters. `device` is `cuda:N` as PyTorch numbers it
    here, `host` or `auto`; with more `devices` than one it has that many whole GPUs at once in its
    turn, all or none. A session of `weight` 2 gets twice the time of one of weight 1; one of a
    higher `priority` goes first, and only an admin may set one above 0. `remaining_iterations`
    orders sessions under `srtf`. Raises InvalidValue for a value out of its range.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        name: str,
        device: str | None = None,
        devices: int = 1,
        weight: float = 1.0,
        priority: int = 0,
        remaining_iterations: int | None = None,
    ) -> None:
        options.check(
            {
                "name": name,
                "device": device,
                "devices": devices,
                "weight": weight,
                "priority": priority,
                "remaining_iterations": remaining_iterations,
            }
        )
        self._settings = settings or load()
        self._secret = secrets.token_hex(16)  # that shows whose session it is
        self.id = sealed(self._secret)
        self.name = name
        self.device = device or self._settings.device  # as it is called in this process
        self.devices = devices
        self.host_device = ""  # as the broker calls it; of several at once, the first
        self.host_devices: list[str] = []  # all, where it has several at once
        self._uuids: list[str] = []  # of these
        self._uuid = ""  # of the GPU that this session has
        self.weight = weight
        self.priority = priority
        self.paused = False
        self.on_wait: Callable[[Wait | None], None] = lambda wait: None
        self.on_waited: Callable[[float], None] = lambda seconds: None  # after each wait
        self.memory: Memory = WholeProcess()
        self.iterations = 0
        self.device_seconds = 0.0
        self.waited_seconds = 0.0
        self.holding = False
        # Taken before `_lock`. Whoever has it knows that no other thread begins an iteration.
        self.entering = threading.RLock()
        self._inside = False  # an iteration is open
        self._group = Membership(self.id)
        # Called with `entering`: close the open iteration if no thread computes in it any more.
        self.close_if_idle: Callable[[], None] = lambda: None
        self._next_try = 0.0  # of the keeper to give the turn back
        self._last_iteration = _plus(0, remaining_iterations)  # where a declared end lies
        self._turn = 0
        self._ended = 0  # the last turn that the broker was told is over
        self._waiting = False
        self.capacity = 0  # bytes of the device, once it is open
        self._asked: Yield | None = None  # to end this turn at the next boundary
        self._mailbox = Mailbox()
        self._idle_turn = IdleTurn()
        self._since = 0.0  # when this turn, or this wait, began
        self._waited_before = 0.0  # seconds, in the waits before this one
        self._reported = 0
        self._reported_at = -math.inf
        self._busy = True  # a cell runs; scripts do not know cells
        self._returning = False  # a cell waits for this process's memory
        self.paged_out_bytes = 0
        self._page_ins = 0  # that it was told since it has its place
        self._resting = False  # it has no place at the broker until its next cell
        self._notices: list[str] = []  # to be shown in the present cell, or the next one
        self.on_trouble: Callable[[str], None] = lambda sentence: None
        self._told_of_survivors = False
        self._told_of_lane = ""  # what was the trouble with it last
        self._wake, self._woken = socket.socketpair()  # ends a sleep of the keeper
        self._refusal: GpuShareError | None = None
        self._trouble = ""  # why the connection could not be restored
        self._is_restoring = False  # the keeper is, and has the lock for as long as that takes
        self._lock = threading.RLock()
        self._closed, self._keeper_ends = threading.Event(), threading.Event()
        self._client: Client | None = None

    # --- life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or start the broker and register. Raises GpuShareError with the reason."""
        with self._lock:
            self._connect()
        _living.add(self)
        _kept.add(self)
        try:
            threading.Thread(target=self._keep, name="gpushare-keeper", daemon=True).start()
        except RuntimeError as error:  # a limit on threads
            _kept.discard(self)
            self.close()
            raise BrokerUnavailable(f"sharing needs one thread more: {error}") from None

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
        self._idle_turn.close()
        self._end_keeper()

    def _say_goodbye(self) -> None:
        """Say nothing where something of ours stays in the lane: then the broker finds the
        connection lost and this process alive, and leaves the lane's memory to it."""
        stays = self.holding and not self._is_lane_empty()
        self._stop_holding()
        if self._client is not None and not stays:
            with contextlib.suppress(GpuShareError):  # the broker forgets whoever is gone
                self._client.ask(Close(), seconds=GOODBYE_SECONDS)

    def _is_lane_empty(self) -> bool:
        if self.memory.is_torn:
            return False
        try:
            self.memory.evacuate()
        except MemoryError:
            return False
        return True

    def change(
        self,
        *,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> None:
        """Change this session live; None leaves a value. Raises GpuShareError when refused."""
        live = {"weight": weight, "priority": priority}
        options.check({name: value for name, value in live.items() if value is not None})
        with self._lock:
            if not self._restored():
                raise BrokerUnavailable("the broker is away, so nothing was changed: try again")
            if self._resting:
                self._end_rest()
            self._ask(Change(None, weight, priority, paused), ANSWER_SECONDS)
            self.weight = self.weight if weight is None else weight
            self.priority = self.priority if priority is None else priority
            self.paused = self.paused if paused is None else paused

    def declare(self, remaining_iterations: int | None) -> None:
        """Tell the broker how many iterations are still to come; None: nobody knows."""
        options.check({"remaining_iterations": remaining_iterations})
        self._last_iteration = _plus(self.iterations, remaining_iterations)
        with self._lock:
            self._say(self._report(time.monotonic()))

    # --- turns -------------------------------------------------------------------------------

    def enter(self) -> None:
        """An iteration begins: return when this process holds the turn.

        Interruptible; an interrupt withdraws the request. Raises Cancelled where somebody else ends
        the wait, and DoesNotFit where the measured demand is larger than the device.
        """
        __tracebackhide__ = True
        with self.entering:
            if not self._idle_turn.enter():
                self._note_gone()
            if not self._closed.is_set():
                if self._group.has_joined(self._place):
                    self._join()
                if self._group.joins and not self.holding:
                    self._compute_outside()
                elif not self.holding:
                    self._obtain()
            self._inside = True

    def _place(self) -> str:
        """The device that this session takes turns on, by a name that no other device has."""
        device = ",".join(self.host_devices) or self.host_device
        return f"{host()}{socket_path(self._settings).absolute()}:{device}"

    def _join(self) -> None:
        """A turn that it has goes to somebody who needs it. Where there is no room outside of the
        lane for what is alive in it, this session keeps its turn until there is, as ever."""
        with self._lock:
            self._give_back()
        self.on_trouble(JOINED)

    def _compute_outside(self) -> None:
        """An iteration without a turn, and so without the lane, which is somebody else's. It waits
        for nothing but its own memory."""
        with self._lock:
            if self._resting or self.paged_out_bytes:
                self.cell_begins()  # as a thread that computes between cells
            self.memory.use_lane(None, 0, self.capacity)
            self._inside = True  # before anybody could page it out

    def _obtain(self) -> None:
        __tracebackhide__ = True
        asked_at = time.monotonic()
        try:
            self._wait_for_turn()
        except (KeyboardInterrupt, Cancelled) as error:
            seconds = time.monotonic() - asked_at
            raise end_of_wait.ended(error, seconds, duration(seconds)) from None

    def _wait_for_turn(self) -> None:
        __tracebackhide__ = True
        with self._lock:
            self._raise_refusal()
            try:
                self._begin_wait()
                self._ask_for_place()
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
        if not self.holding or self._is_restoring:
            self.abandon()
            if self._group.joins and not self._is_restoring:
                self._report_outside(time.monotonic())
            return  # training goes on without a broker
        with self.entering, self._lock:  # an interrupt would come between `acquire` and `try`
            try:
                if self._connected().has_news_of(self._turn, self._mailbox):
                    self._hand_on()
                    self._look()
                if self._asked is not None:
                    self._part_if_asked()
                if self._owes_report(now := time.monotonic()) or self.memory.has_news:
                    self._say(self._report(now))
            except (ConnectionLost, ProtocolError):
                self._drop_connection()  # the keeper restores it
            finally:
                self._inside = False
                self._idle_turn.leave()

    def _report_outside(self, now: float) -> None:
        if not self._owes_report(now) and not self.memory.has_news:
            return
        with self.entering, self._lock:
            try:
                self._look()
                self._say(self._report(now))
            except (ConnectionLost, ProtocolError):
                self._drop_connection()

    def abandon(self) -> None:
        """The open iteration, if there is one, has ended without a boundary."""
        self._inside = False
        self._idle_turn.leave()

    def cell_begins(self) -> None:
        """Return when this process's memory is back on the device. Interruptible.

        A session whose cells are announced is paged out between them when others need the room.
        """
        self._busy = True
        self.memory.stop_paging_out()  # the keeper may do that, and has the lock
        with self._lock:
            self._say(Busy(True))
            self._come_back()
        self._wake_keeper()

    def cell_ends(self) -> None:
        """Nothing runs in this process until a cell begins."""
        with self._lock:
            with contextlib.suppress(ConnectionLost, ProtocolError):
                self._look()  # what the user has to be told of this cell
            self._busy = False
            self._say(Busy(False))
        self._wake_keeper()

    def take_notices(self) -> list[str]:
        """Sentences for the user, each told once."""
        notices, self._notices = self._notices, []
        return notices

    def leave(self) -> None:
        """Give the turn back now, as at the end of a cell, and report what is not reported yet.

        No other thread may be inside an iteration.
        """
        with self.entering:
            self.abandon()
            self._note_gone()
            owes_word = self._ended != self._turn and not self._waiting
            if self.holding or owes_word or self._reported != self.iterations:
                with self._lock:
                    self._give_back()
                    self._say(self._report(time.monotonic()))

    def _look(self) -> None:
        """Take what has come, without waiting."""
        self._note_gone()
        while self._client is not None and self._client.has_news():
            self._take(self._client.receive())

    def _begin_wait(self) -> None:
        self._start_clock()
        self._turn += 1
        self._waiting = True
        self._asked = None

    def _end_wait(self) -> None:
        self._waiting = False
        self._tell_waited()

    def _start_clock(self) -> None:
        self._since = time.monotonic()
        self._waited_before = self.waited_seconds

    def _tell_waited(self) -> None:
        """What a cell says of its waits is the growth of the one figure that `status` shows."""
        self.on_waited(self.waited_seconds - self._waited_before)
        self.on_wait(None)

    def _await_news(self) -> None:
        try:
            news = self._connected().await_turn(self._turn, self._mailbox)
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
        self._say_end()

    def _give_back(self) -> None:
        with contextlib.suppress(ConnectionLost):  # the next connection says the same
            if not self.holding:
                self._say_end()  # an interrupt may have kept us from it
            elif self._may_part():
                self._part()

    def _part_if_asked(self) -> None:
        if self._asked is not None and self.holding and self._may_part():
            self._part()

    def _may_part(self) -> bool:
        """Whether there is room outside of the lane for what is alive in it."""
        if not (survivors := self.memory.survivors()):
            return True
        try:
            self._ask(Keep(self.memory.demand()))
            self.memory.evacuate()
        except OverQuota as error:
            self._tell_of_survivors(survivors, str(error))
            return False
        except (NoRoom, DoesNotFit, MemoryError):
            self._tell_of_survivors(survivors, "there is no room for them outside of the lane")
            return False
        self._told_of_survivors = False
        return True

    def _tell_of_survivors(self, size: int, why: str) -> None:
        if not self._told_of_survivors:
            self._told_of_survivors = True
            self.on_trouble(
                f"{size / (1 << 20):.0f} MiB of the last iteration are still in use, and {why}, so"
                " this notebook keeps its turn and others wait: `del` the results that hold them,"
                " or run `%gpushare tidy`"
            )

    # --- between cells -----------------------------------------------------------------------

    def _come_back(self) -> None:
        """Wait for room; without a broker there is nobody to wait for."""
        if not (self._resting or self.paged_out_bytes):
            return  # it is there, and may have a turn in another thread
        self._start_clock()
        self._returning = True
        try:
            self._ask_for_place()
            while self.paged_out_bytes and not self._closed.is_set() and self._restored():
                with contextlib.suppress(ConnectionLost, ProtocolError):
                    self._take(self._connected().receive())
                    continue
                self._drop_connection()
            self._page_in()
        except BaseException:  # who knows what has been said: the next connection says it all
            self._break_off()
            raise
        finally:
            self._returning = False
            self._note_waited()
            self._tell_waited()

    def _ask_for_place(self) -> None:
        """As long as it rests, and the broker refuses it one: others may have what it had."""
        for pause in _pauses():
            if not self._resting or self._closed.is_set():
                return
            try:
                self._end_rest()
            except (ConnectionLost, ProtocolError):
                self._drop_connection()  # the next one registers
                self._resting = False
            except GpuShareError as error:
                waited = time.monotonic() - self._since
                self.on_wait(Wait(self._turn, 1, waited, f"{error}; trying again"))
                time.sleep(pause)

    def _end_rest(self) -> None:
        """Have a place again. Raises what the broker answered."""
        with self._in_order():
            self._register(self._connected())

    def _page_in(self) -> None:
        if self.paged_out_bytes:
            trouble = self.memory.page_in()
            self.paged_out_bytes = 0
            if trouble:
                self.on_trouble(trouble)

    def _page_out(self) -> None:
        """Between cells, or in one that waits for its turn: then this thread does nothing else."""
        if self.holding or (self._busy and not self._waiting):
            return  # then the broker knows that it was asked in vain
        if self._group.joins and self._inside:
            self._say(StaysIn(JOINS))
            return
        if self._busy and self._uuid:
            self._say(StaysIn(ON_GPU))
            return
        self.paged_out_bytes, reason = self._move_out()
        out = PagedOut(self.paged_out_bytes, self._page_ins)
        self._say(StaysIn(reason) if reason else out)

    def _move_out(self) -> tuple[int, str]:
        """The bytes that are out, and why nothing is. What is out already stays there: the broker
        counts on it."""
        if self.paged_out_bytes:
            return self.paged_out_bytes, ""
        return self.memory.page_out(self._settings.page_directory or _cache_directory())

    def _give_back_memory(self) -> None:
        if not (self._busy or self.holding or self.paged_out_bytes):
            self.memory.give_back()
            self._say(self._report(time.monotonic()))

    def _rest(self) -> None:
        """Only with its memory on disk: what stays on the device has to be counted there. Not where
        a thread waits for a turn between cells, for then the broker keeps the place for that."""
        if self._busy or self._waiting or self.holding:
            return
        if self._group.joins and self._inside:
            self._say(StaysIn(JOINS))
            return
        size, reason = self._move_out()
        if reason and self.memory.live() > UNCOUNTED_BYTES:
            self._say(StaysIn(reason))
            return
        self.paged_out_bytes = size
        self._say(Rests(size))
        self._resting = True

    def _end_keeper(self) -> None:
        self._keeper_ends.set()
        self._wake_keeper()

    def _wake_keeper(self) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended
            self._wake.send(b"!")

    def _hand_on(self) -> None:
        """As `_part`, before what has come is received: who is named in it finds the turn sooner,
        and what has come finds this turn over."""
        if self._mailbox.has_successor() and not self.memory.survivors():
            self.memory.evacuate()
            if self._stop_holding():
                self._mailbox.hand_on()
            self._say_end()

    def _part(self) -> None:
        """This process uses the device no more, and its successor may. Where an interrupt hits
        in between, this process has no turn, and says so at the end of its cell."""
        self.memory.evacuate()
        is_ours = self._stop_holding()
        if is_ours and self._asked is not None and (successor := self._asked.successor) is not None:
            self._mailbox.send(successor.mailbox, successor.letter)
        self._say_end()

    def _note_gone(self) -> None:
        """The turn may have gone between two iterations, while Python stood still."""
        if not self.holding or not self._idle_turn.gone_at():
            return
        with self._lock:
            if self.holding and (gone_at := self._idle_turn.gone_at()):
                self._ended = self._turn
                self._stop_holding(gone_at)

    def _say_end(self) -> None:
        if self._ended != self._turn:
            self._say(Finish(self._turn))
            self._ended = self._turn

    def _ask(self, message: Message, seconds: float = math.inf) -> None:
        """Send and wait until it is done. Raises the error that the broker answered."""
        with self._in_order():
            self._connected().ask(message, aside=self._take, seconds=seconds)

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Around a question: where an interrupt ends the wait for its answer, that would be taken
        for the next one's."""
        try:
            yield
        except GpuShareError:
            raise
        except BaseException:
            self._break_off()
            raise

    def _break_off(self) -> None:
        """End the connection after an interrupt, and the turn, which others may have from then on.
        What is alive in the lane stays there: the broker leaves that memory to this process."""
        self._stop_holding()
        self._drop_connection()

    def _say(self, message: Message) -> None:
        """Send. If the connection is lost, or the broker knows no such session while it rests, its
        next registration says the same."""
        if self._resting:
            return
        try:
            self._connected().send(message)
        except ConnectionLost:
            self._drop_connection()

    def _stop_holding(self, now: float | None = None) -> bool:
        """Whether this ends the turn: not if it has gone, and may be somebody else's by now."""
        has_ended = self._idle_turn.keep()
        if self.holding:
            self.holding = False
            self.device_seconds += (now or time.monotonic()) - self._since
        return has_ended

    def _note_waited(self) -> None:
        now = time.monotonic()
        self.waited_seconds += now - self._since
        self._since = now

    # --- what the broker says ----------------------------------------------------------------

    def _take(self, message: ToClient) -> None:
        """React to one message. Stale turn numbers belong to withdrawn requests and are ignored; so
        is what was sent to the place that a session had before it came to rest."""
        if self._resting and isinstance(message, OF_A_PLACE):
            return
        if isinstance(message, Grant):
            if message.turn == self._turn and (self._waiting or self.holding):
                self._use_lane(message)
            if message.turn == self._turn and self._waiting:
                self._page_in()
                self._note_waited()
                self.holding = True
                self._lend()
        elif isinstance(message, Yield):
            if message.turn == self._turn and self.holding:
                self._asked = message
                self._idle_turn.want()
        elif isinstance(message, Withdraw):
            if message.turn == self._turn and self._waiting and not self.holding:
                self._refusal = Cancelled(message.reason)
        elif isinstance(message, RenewKey):
            if key := self._mailbox.new_key():
                self._say(NewKey(key))
        elif isinstance(message, Trim):
            self.memory.trim_lane(message.memory, message.bytes)
        elif isinstance(message, PageOut):
            self._page_out()
        elif isinstance(message, PageIn):
            self._page_ins += 1
            self._page_in()
        elif isinstance(message, GiveBack):
            self._give_back_memory()
        elif isinstance(message, Rest):
            self._rest()
        elif isinstance(message, Notice):
            self._notices.append(message.sentence)
        elif isinstance(message, Wait):
            if message.turn == self._turn and (self._waiting or self._returning):
                self.on_wait(message)
        elif isinstance(message, Error):
            self._refusal = from_code(message.code, message.message)
            self._asked = Yield(self._turn)  # then end at the next boundary

    def _lend(self) -> None:
        """Between iterations the turn may go without Python; but not on a GPU, since only PyTorch
        knows what is alive there, and waits for what the GPU has still to do."""
        if not self._uuid and self.devices == 1:
            self._idle_turn.lend(self._turn, encode(Finish(self._turn)))

    def _use_lane(self, grant: Grant) -> None:
        known = self._connected().lane_memory
        is_known = grant.memory != 0 and grant.memory == known.number
        memory, size = (known, grant.bytes) if is_known else (None, 0)
        trouble = self.memory.use_lane(memory, size, self.capacity)
        if trouble and trouble != self._told_of_lane:
            self.on_trouble(f"iterations run outside of the shared lane: {trouble}")
        self._told_of_lane = trouble

    def _raise_refusal(self) -> None:
        """Said once: the next cell tries again, since the user may have made room."""
        __tracebackhide__ = True
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def _owes_report(self, now: float) -> bool:
        """In the middle of a turn that is long, else at its end; the first iteration at once."""
        if self.holding and self._reported_at > -math.inf:
            seconds = self._settings.report_seconds
            return now >= self._reported_at + seconds and now >= self._since + seconds
        return now >= self._reported_at + AT_END_OF_TURN * self._settings.report_seconds

    def _report(self, now: float) -> Report:
        done = self.iterations - self._reported
        self._reported = self.iterations
        self._reported_at = now
        return Report(done, self._demand(), self._remaining())

    def _demand(self) -> Demand:
        """Outside of the lane nothing is ephemeral: nobody else can have the same room."""
        demand = self.memory.demand()
        if not self._group.joins or self.holding:
            return demand
        whole = demand.persistent_bytes + demand.ephemeral_bytes
        return Demand(whole, 0, demand.measured)

    def _remaining(self) -> int | None:
        if self._last_iteration is not None:
            return max(0, self._last_iteration - self.iterations)
        return progress.from_tqdm()

    # --- connection --------------------------------------------------------------------------

    def _connected(self) -> Client:
        if self._client is None:
            raise ConnectionLost("the broker is away")
        return self._client

    def _connect(self) -> None:
        """Open a connection and register, with what this session holds or waits for."""
        client = Client.connect(self._settings, self.name)
        try:
            self._register(client)
        except BaseException:
            client.close()
            raise
        self._client = client
        self._idle_turn.watch(client.fileno())
        if self._closed.is_set():  # meanwhile: `close` has not seen this connection
            self._drop_connection()

    def _register(self, client: Client) -> None:
        self._note_gone()
        answer = client.ask(self._registration(), aside=self._take)
        if not isinstance(answer, Opened):
            raise ProtocolError(f"Opened was due, {type(answer).__name__} came")
        if len(answer.gang or [answer.device]) != self.devices:
            raise ProtocolError(OLD_BROKER)
        if not self.host_device:
            self._settle(answer)
        self.host_device = answer.device
        self.capacity = answer.capacity_bytes
        self._asked = None  # whoever was named, was named to the connection before
        self._reported = self.iterations
        self._resting, self._page_ins = False, 0
        if not self.holding:
            self._ended = self._turn - self._waiting

    def _settle(self, answer: Opened) -> None:
        """The first answer says where; later it is the same device."""
        self._uuid = answer.uuid
        self.host_devices, self._uuids = answer.gang, answer.uuids
        if answer.gang:
            self.device = visible.settle_at_once(answer.uuids)
            if type(self.memory) is WholeProcess:
                self.memory = ProcessOnGpus(answer.uuids)
        elif not answer.uuid:
            self.device = answer.device
        else:
            self.device = visible.settle(self.device, answer.uuid)
            if type(self.memory) is WholeProcess:  # nobody knows better
                self.memory = ProcessOnGpu(answer.uuid)

    def _where(self) -> tuple[str, list[str]]:
        """The device to ask for, and those among which to choose; once it is open, what it has."""
        if self.devices != 1:
            return "auto", self._uuids or visible.wanted_at_once(self.device, self.devices)
        here = self._uuid or self.host_device
        return (here, []) if here else visible.wanted(self.device)

    def _registration(self) -> Open:
        device, among = self._where()
        waiting = self._waiting and not self.holding
        waits = waiting or self._returning
        lasted = time.monotonic() - self._since  # this turn, or this wait
        return Open(
            id=self.id,
            name=self.name,
            device=device,
            among=among,
            devices=self.devices,
            weight=self.weight,
            priority=self.priority,
            demand=self._demand() if self.iterations else Demand(),
            remaining_iterations=self._remaining(),
            turn=self._turn,
            holding=self.holding,
            waiting=waiting,
            paused=self.paused,
            device_seconds=self.device_seconds + (lasted if self.holding else 0.0),
            waited_seconds=self.waited_seconds + (lasted if waits else 0.0),
            iterations=self.iterations,
            paged_out_bytes=self.paged_out_bytes,
            busy=self._busy,
            mailbox=self._mailbox.name,
            key=self._mailbox.new_key(),
            secret=self._secret,
        )

    def _drop_connection(self) -> None:
        """Forget a connection that ended; what was promised on it is said again at the next."""
        if self._client is not None:
            self._client.close()
            self._idle_turn.watch(-1)
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
        try:
            while not self._keeper_ends.is_set():
                if not self._is_looked_after(self._is_woken):
                    self._restore()
        finally:
            self._wake.close()
            self._woken.close()
            _kept.discard(self)

    def _restore(self) -> None:
        for pause in _pauses():
            if self._keeper_ends.is_set() or self._is_looked_after(self._restored_aside):
                return
            self._keeper_ends.wait(pause)

    def _is_looked_after(self, look: Callable[[], bool]) -> bool:
        """Whatever goes wrong, the keeper tries again: without it nothing restores a connection
        while user code computes."""
        try:
            return look()
        except Exception as error:  # the thread's last border
            self._trouble = f"{type(error).__name__}: {error}"
            self._keeper_ends.wait(LAST_RETRY_SECONDS)
            return False

    def _restored_aside(self) -> bool:
        """By the keeper, while other threads may go on."""
        self._is_restoring = True
        try:
            with self._lock:
                return self._closed.is_set() or self._restored()
        finally:
            self._is_restoring = False

    def _is_woken(self) -> bool:
        """Sleep; False if the connection hung up meanwhile. While a cell runs, messages are left to
        the thread that runs iterations."""
        self._look_between_cells()  # what came with an answer is in the socket no more
        poll = select.poll()
        with self._lock:
            client = self._client
            descriptor = -1 if client is None else client.fileno()
            if descriptor < 0:  # none, or closed by another thread just now
                return False
            poll.register(descriptor, select.POLLRDHUP | (0 if self._busy else select.POLLIN))
            poll.register(self._woken, select.POLLIN)
        events = dict(poll.poll(self._look_milliseconds()))
        if events.get(descriptor, 0) & ~select.POLLIN:
            self._drop_if_current(client)
            return False
        if events.get(self._woken.fileno()):
            self._woken.recv(64)
        elif events:
            self._look_between_cells()
        self._give_back_if_wanted()
        return self._client is client

    def _look_milliseconds(self) -> int:
        """While a cell runs, the keeper does not wait for messages: it would compete for the
        interpreter with the thread that is about to find the same one at its boundary."""
        return IDLE_LOOK_MILLISECONDS if self._busy or self._asked else HANG_UP_LOOK_MILLISECONDS

    def _give_back_if_wanted(self) -> None:
        """Where no iteration is open that would come to a boundary. Without waiting: a thread that
        has one of the locks begins an iteration, or ends one and looks itself."""
        if not self.holding or time.monotonic() < self._next_try:
            return
        if self.entering.acquire(blocking=False):
            try:
                if self._lock.acquire(blocking=False):
                    try:
                        self._give_back_aside()
                    finally:
                        self._lock.release()
            finally:
                self.entering.release()

    def _give_back_aside(self) -> None:
        self._note_gone()
        try:
            is_wanted = self._asked or self._connected().has_news()
            if not is_wanted or (self.memory.survivors() and not self.memory.moves_aside):
                return
            if self._inside:
                self.close_if_idle()
            if not self._inside:
                self._look()
                self._part_if_asked()
        except (ConnectionLost, ProtocolError):
            self._drop_connection()
        if self.holding and self._told_of_survivors:
            self._next_try = time.monotonic() + NO_ROOM_RETRY_SECONDS

    def _look_between_cells(self) -> None:
        with self._lock, contextlib.suppress(ConnectionLost, ProtocolError):
            if not self._busy:
                self._look()

    def _drop_if_current(self, client: Client | None) -> None:
        with self._lock:
            if self._client is client:
                self._drop_connection()

    def _forget(self) -> None:
        """In a forked child: the session is the parent's; only our copy of its socket goes.

        Locks are made anew, since a thread that no longer exists may have held them.
        """
        self._closed = threading.Event()
        self._closed.set()
        self._lock, self.entering = threading.RLock(), threading.RLock()
        self.holding = self._inside = False
        if self._client is not None:
            self._client.abandon()
        self._idle_turn.forget()
        for end in (self._mailbox, self._wake, self._woken):
            end.close()


def _cache_directory() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("jupyter_gpushare", ensure_exists=True)


def _plus(done: int, more: int | None) -> int | None:
    return None if more is None else done + more


def _pauses() -> Iterator[float]:
    """Seconds between tries: doubling, up to LAST_RETRY_SECONDS, without end."""
    pause = FIRST_RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LAST_RETRY_SECONDS)


_living: set[Session] = set()
_kept: set[Session] = set()  # whose keepers run


def _forget_all() -> None:
    for living in tuple(_living):
        living._forget()
    _living.clear()
    _kept.clear()


def _end_keepers() -> None:
    """At the end of the process. Python ends a thread that asks for its lock after that in the
    middle of its stack, and where C++ stands on this, that aborts the process."""
    end = time.monotonic() + KEEPER_END_SECONDS
    for session in tuple(_kept):
        session._end_keeper()
    while _kept and time.monotonic() < end:
        time.sleep(0.001)


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_end_keepers)
