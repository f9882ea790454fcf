"""A model of a host: a broker that may end and start, notebooks, and all messages between them.

The broker's service and scheduler are the real ones, and so are the sessions with their keepers,
clients, handoff slots and sockets. Two parts are replaced: the system below them (lockstep.py), and
the event loop that reads the broker's sockets. Here the driver decides when each message is heard,
told or lost.
"""

from __future__ import annotations

import gc
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import product
from math import inf

import pytest
from msgspec.structs import replace

from jupyter_gpushare._core import DeviceSnapshot, HostLaneMemory, IdleTurn
from jupyter_gpushare._core import Host as Devices
from jupyter_gpushare.broker.accounting.accounts import AccountBook
from jupyter_gpushare.broker.grants.recovery import HeldTurn, RecoveryJournal
from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.client import end_of_wait
from jupyter_gpushare.client.session import dispatch, keeper, link, residency, turn, usage
from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.devices import Device
from jupyter_gpushare.errors import BrokerUnavailable, GpuShareError, ProtocolError, UnknownSession
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import client
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import Frames, ToBroker, decode_from_client, encode
from jupyter_gpushare.wire.handoff_slot import HandoffSlot

from ..unit.broker.listener import Speaker
from .lockstep import Lockstep, Process, Thread

MIB = 1 << 20
CAPACITY = 100 * MIB
STEP_SECONDS = 0.05  # the interval at which a sleeping thread looks again
# under these no session that asks again passes others forever
FAIR = ("fair", "pack", "classroom")
ROUNDS, ROUND_SECONDS = 200, 0.25  # in which all sessions that wait for a turn then have one
QUIET_STEPS = 400  # steps of all together until nothing is left to do, or they never will


SESSION_MODULE = import_module(Session.__module__)  # the package has a function of that name
CLIENT_MODULES = (SESSION_MODULE, end_of_wait, dispatch, keeper, link, residency, turn, usage)
OF_A_CELL = (KeyboardInterrupt, GpuShareError)  # what a cell may end with
OF_OURS = (ProtocolError, UnknownSession)  # but for these, which no user can cause


class Kept(WholeProcess):
    """The memory of a notebook, of known size. A part of it may outlive an iteration."""

    def __init__(self, demand: Demand) -> None:
        super().__init__()
        self._demand = demand
        self.alive = 0  # bytes in the lane after an iteration
        self.lane: int | None = None  # which memory, as the system numbers it
        self.is_out = False
        self.disk_is_full = False  # so nothing can be paged out

    def demand(self) -> Demand:
        persistent = self._demand.persistent_bytes + self.alive
        return Demand(persistent, self._demand.ephemeral_bytes, self._demand.measured)

    def survivors(self) -> int:
        return self.alive

    def evacuate(self) -> None:
        self._demand, self.alive = self.demand(), 0

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        self.lane = None if memory is None else os.fstat(memory.descriptor).st_ino
        return ""

    def live(self) -> int:
        return 0 if self.is_out else self._demand.persistent_bytes

    def page_out(self, directory: str) -> tuple[int, str]:
        """Page out like the pager: after a failure all memory stays in."""
        self.is_out = not self.disk_is_full and self._demand.persistent_bytes > 0
        if self.disk_is_full:
            return 0, "the disk is full"
        return self._demand.persistent_bytes, ""

    def page_in(self) -> str:
        self.is_out = False
        return ""

    def give_back(self) -> None:
        """It has no memory."""


class Notebook(Process):
    """A process with a session. Its user takes one step after the other, in a cell or between
    cells. Another thread may end sharing at any time."""

    main: Thread  # does what its user does

    def __init__(self, host: Host, name: str, user: str, demand: Demand, weight: float) -> None:
        super().__init__()
        self._host, self.user, self.name = host, user, name
        self.session = Session(host.settings, name=name, device="host", weight=weight)
        self.session.id = name
        self.memory = self.session.memory = Kept(demand)
        self.is_inside = False  # an iteration
        self.must_leave = False  # its cell has failed, and ends
        self.is_open = self.is_closing = False
        self._other_cell: Thread | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def is_free(self) -> bool:
        """Whether its user may take the next step."""
        return self.is_open and self.main.has_ended

    @property
    def is_waiting(self) -> bool:
        """Whether its user may interrupt it."""
        return self.is_alive and not self.main.has_ended

    @property
    def is_here(self) -> bool:
        return self.is_alive and not self.is_closing

    def does(self, what: Callable[[], None]) -> None:
        self.main = Thread(self._host.lockstep, self, what)

    def opens(self) -> None:
        self.does(self._opens)

    def begins(self) -> None:
        """Run up to the next boundary: the begin or the end of an iteration."""
        self.does(self._ends_iteration if self.is_inside else self._begins_iteration)

    def begins_between_cells(self) -> None:
        """Like `begins`, but in a user's thread outside of any cell."""
        self.does(self._ends_iteration if self.is_inside else self._enters)

    def leaves(self) -> None:
        self.is_inside = self.must_leave = False
        self.does(self._leaves)

    def ends_block(self) -> None:
        """Give the turn of explicit iterations back. The cell continues, if there is one."""
        self.is_inside = False
        self.does(self.session.leave)

    def declares(self) -> None:
        self.does(partial(self.session.declare, 10))

    def changes(self) -> None:
        self.does(partial(self.session.change, weight=2.0))

    @property
    def may_run_another_cell(self) -> bool:
        """Whether a user's thread waits outside of any cell, so that a cell may run."""
        waits = self.is_here and self.is_waiting and self.session._turn.waiting
        return waits and not self.session._residency.busy and not self._has_other_cell

    @property
    def _has_other_cell(self) -> bool:
        return self._other_cell is not None and not self._other_cell.has_ended

    def runs_another_cell(self) -> None:
        self._other_cell = Thread(self._host.lockstep, self, self._another_cell)

    def _another_cell(self) -> None:
        session = self.session
        session.cell_begins()
        with suppress(GpuShareError):
            session.change(weight=2.0)
        if not session.unless_waiting(self._another_cell_ends):
            session.cell_ends()

    def _another_cell_ends(self) -> None:
        """End another cell. A thread inside an iteration keeps the turn."""
        if not self.session.inside:
            self.session.leave()
            self.session.cell_ends()

    def closes(self) -> None:
        self.is_closing = True
        Thread(self._host.lockstep, self, self.session.close)

    @property
    def has_turn(self) -> bool:
        """Whether it has the turn. A turn that went back without Python has ended before Python
        knows of it."""
        return self.session.holding and not self.session._idle_turn.gone_at()

    def stands_still(self) -> None:
        """Let Python stand still while a thread looks, which can give the idle turn back without
        Python. Python itself would give it back at its next event."""
        if not self.memory.alive:
            self.session._idle_turn.look()

    def goes_on(self, thread: Thread, stops_at_sends: bool) -> None:
        thread.go_on(stops_at_sends=stops_at_sends)
        self._look_at(thread)

    def is_interrupted(self, is_caught: bool = False) -> None:
        """Interrupt the cell. A cell that catches the interrupt goes on."""
        self.main.go_on(KeyboardInterrupt())
        self._look_at(self.main)
        if is_caught and self.is_open:
            self.must_leave = False

    def _look_at(self, thread: Thread) -> None:
        if thread.error is None:
            return
        if thread is not self.main or not isinstance(thread.error, OF_A_CELL):
            raise thread.error
        if isinstance(thread.error, OF_OURS):
            raise thread.error
        self.is_closing = self.is_closing or not self.is_open
        self.must_leave, self.is_inside = True, False

    def _opens(self) -> None:
        self.session.open()
        self.is_open = True

    def _begins_iteration(self) -> None:
        self.session.cell_begins()
        self._enters()

    def _enters(self) -> None:
        self.session.enter()
        self.is_inside = self.session.holding

    def _ends_iteration(self) -> None:
        self.is_inside = False
        self.session.boundary()

    def _leaves(self) -> None:
        self.session.leave()
        self.session.cell_ends()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collect no garbage within the block: it could close descriptors of another run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


WAYS = ("hears", "says", "goes on")  # what may be slow of a notebook
Slow = tuple[Notebook, str]


class SlowHandoffSlot(HandoffSlot):
    """A handoff slot that waits in lockstep. Its messages may be slow, or lost."""

    def __init__(self, lockstep: Lockstep) -> None:
        with _nothing_collected():
            os.close(lowest := os.dup(0))  # the descriptor that it will have
            super().__init__()
            self._end = socket.socket(fileno=os.dup(lowest))
        self._lockstep = lockstep
        assert self._end.getsockname() == f"\0{self.name}".encode()

    def fileno(self) -> int:
        return self._end.fileno()

    def lose(self) -> None:
        """Lose a message, except for the empty one by which a session wakes its own thread."""
        with suppress(OSError):
            if self._end.recv(1 << 12, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                self._end.recv(1 << 12, socket.MSG_DONTWAIT)

    def wait(self, connection: int, turn: int) -> tuple[int, int, int, int, int] | None:
        both = self._lockstep.select.poll()
        for descriptor in (connection, self.fileno()):
            if descriptor >= 0:
                both.register(descriptor, select.POLLIN)
        is_here = any(descriptor == self.fileno() for descriptor, _ in both.poll())
        return super().wait(connection, turn) if is_here else None

    def close(self) -> None:
        super().close()
        self._end.close()


class Line(Peer):
    """A connection on the broker's side, with the messages on their way."""

    def __init__(self, notebook: Notebook, end: socket.socket) -> None:
        self.user, self.uid, self.pid = notebook.user, os.getuid(), os.getpid()
        self.notebook = notebook
        self._end = end
        self._end.setblocking(False)
        self._frames = Frames()
        self._said: deque[ToBroker] = deque()
        self._to_tell: deque[tuple[bytes, int]] = deque()  # with a descriptor, or -1
        self._is_over = False  # the client is gone

    def __repr__(self) -> str:
        return f"line of {self.notebook}"

    # actions of the service

    def send(self, *messages: m.Message) -> None:
        self._to_tell.extend((encode(message), -1) for message in messages)

    def send_frame(self, frame: bytes) -> None:
        self._to_tell.append((frame, -1))

    def send_with(self, message: m.Message, descriptor: int) -> None:
        self._to_tell.append((encode(message), os.dup(descriptor)))

    def is_alive(self) -> bool:
        return self.notebook.is_alive

    def is_behind(self) -> bool:
        return bool(self._to_tell)

    def close(self) -> None:
        raise AssertionError("no rule of these tests ends a connection")

    # messages on their way

    @property
    def has_said(self) -> bool:
        """Whether there is a message, or the end of the client, that the broker has not heard."""
        return self.is_over or bool(self._said)

    @property
    def is_over(self) -> bool:
        self._read()
        return self._is_over

    @property
    def has_to_tell(self) -> bool:
        return bool(self._to_tell)

    def tell_all(self) -> bool:
        """Hear all messages; return whether there were any."""
        had = self.has_to_tell
        while self._to_tell:
            self.tell()
        return had

    def next_said(self) -> ToBroker | None:
        """Return the next message; None if the connection has ended."""
        return self._said.popleft() if self._said else None

    def tell(self) -> None:
        frame, descriptor = self._to_tell.popleft()
        with suppress(OSError):  # the other end is gone
            if descriptor < 0:
                self._end.sendall(frame)
            else:
                socket.send_fds(self._end, [frame], [descriptor])
        if descriptor >= 0:
            os.close(descriptor)

    def end(self, told: int = 0) -> None:
        """End the connection, after telling this number of messages. The others are lost."""
        while self._to_tell and told > 0:
            told -= 1
            self.tell()
        for _, descriptor in self._to_tell:
            if descriptor >= 0:
                os.close(descriptor)
        self._to_tell.clear()
        self._end.close()

    def lose_what_was_said(self, heard: int) -> None:
        """Drop the client's messages: the broker finds the other end gone when it writes, and reads
        no more."""
        self._read()
        while self._is_over and len(self._said) > heard:
            self._said.pop()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while not self._is_over:
                try:
                    data = self._end.recv(1 << 16)
                except ConnectionResetError:  # it left something unread
                    data = b""
                self._is_over = not data
                self._said.extend(map(decode_from_client, self._frames.feed(data)))


class Broker:
    """A broker process: its service, the alarm of its endpoint, and its connections."""

    def __init__(
        self, settings: Settings, lockstep: Lockstep, was_in_use: bool, journal: RecoveryJournal
    ) -> None:
        self._lockstep = lockstep
        self._accounts = AccountBook(clock=lambda: lockstep.now, now=lockstep.now)
        grants_from = lockstep.now + settings.recovery_seconds if was_in_use else 0.0
        self.waits_until = grants_from + settings.lease_seconds
        device = Device("host", CAPACITY, "main memory", partial(HostLaneMemory, CAPACITY))
        self.service = Service(
            settings,
            [device],
            started=0.0,
            grants_from=grants_from,
            accounts=self._accounts,
            journal=journal,
            clock=lambda: lockstep.now,
        )
        self.lines: list[Line] = []
        self.alarm: float | None = None
        self.admin = Admin(self.service, "root")

    @property
    def scheduler(self) -> Devices:
        return self.service._host

    @property
    def is_recovering(self) -> bool:
        return self.scheduler.recovering

    def hear(self, line: Line) -> None:
        message = line.next_said()
        if message is not None:
            self.service.handle(line, message, self._lockstep.now)
        else:
            self.lines.remove(line)
            line.end()
            self.service.lost(line, self._lockstep.now)
        self._note_alarm()

    def hear_admin(self, message: ToBroker) -> None:
        self.service.handle(self.admin, message, self._lockstep.now)
        self._note_alarm()

    def tick(self) -> None:
        self.service.tick(self._lockstep.now)
        self._note_alarm()

    def ring(self) -> None:
        self.alarm = None
        self.service.pass_time(self._lockstep.now)
        self._note_alarm()

    def _note_alarm(self) -> None:
        """Called after each event, like Endpoint.happened."""
        due = self.service.next_event(self._lockstep.now)
        if due is not None and (self.alarm is None or due < self.alarm):
            self.alarm = due

    def end(self, told: int = 0) -> None:
        for line in self.lines:
            line.end(told)
        self._accounts.close()


class Admin(Speaker):
    """A client with all permissions, which receives the answers."""

    is_owner = True


class Host:
    def __init__(self) -> None:
        self.settings = Settings(running_lanes=1)
        self.most_lanes: float = 1  # lanes that could run at once since it was here
        self.lockstep = Lockstep()
        self.notebooks: list[Notebook] = []
        self._broker: Broker | None = None
        self._was_in_use = False
        with ExitStack() as at_end:
            at_end.callback(self.lockstep.close)
            self._roll_file = os.memfd_create("roll")
            at_end.callback(os.close, self._roll_file)
            self._patch(at_end.enter_context(pytest.MonkeyPatch.context()))
            self.start_broker()
            at_end.callback(self._end_all)
            self._at_end = at_end.pop_all()

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        for module, name in product(CLIENT_MODULES, ("threading", "select", "time")):
            if hasattr(module, name):
                patch.setattr(module, name, getattr(self.lockstep, name))
        patch.setattr(SESSION_MODULE, "HandoffSlot", partial(SlowHandoffSlot, self.lockstep))
        patch.setattr(SESSION_MODULE, "IdleTurn", partial(IdleTurn, watches=False))
        patch.setattr(client, "select", self.lockstep.select)
        patch.setattr(client.launch, "connect", self._connect)

    def close(self) -> None:
        """Clean up even after a failed run, since later tests use the real system."""
        self._at_end.close()

    def _end_all(self) -> None:
        with ExitStack() as each:
            for notebook in self.notebooks:
                each.callback(self.kill, notebook)
            if self.has_broker:
                each.callback(self.end_broker)

    def begin_with(self, policy: str, lanes: int) -> None:
        """Set the policy and lanes as if the broker had been started with them. `lanes` run at
        once; 0 is `auto`."""
        self.end_broker()
        self.settings = replace(self.settings, policy=policy, running_lanes=lanes)
        self.most_lanes = lanes or inf
        self.start_broker()

    # --- starts and ends --------------------------------------------------------------------------

    def open(self, name: str, user: str, demand: Demand, weight: float = 1.0) -> Notebook:
        notebook = Notebook(self, name, user, demand, weight)
        self.notebooks.append(notebook)
        notebook.opens()
        return notebook

    def kill(self, notebook: Notebook) -> None:
        notebook.kill()
        notebook.session.close()  # its remains in this process
        self.notebooks.remove(notebook)

    def start_broker(self) -> None:
        journal = RecoveryJournal(self._roll_file)
        self._broker = Broker(self.settings, self.lockstep, self._was_in_use, journal)
        self.broker.ring()  # its recovery ends although no session comes

    def end_broker(self, told: int = 0) -> None:
        """End the broker, which was in use if it had sessions. Each client receives `told` more
        messages; the others are lost."""
        self._was_in_use = self.broker.service.has_sessions or self.broker.is_recovering
        self.broker.end(told)
        self._broker = None

    def _connect(self, settings: Settings, start: bool = True) -> socket.socket:
        """Replacement of broker.start.connect for a thread of a notebook."""
        self.lockstep.stop_at_send()
        if not self.has_broker:
            raise BrokerUnavailable("the broker is away")
        assert self.lockstep.running is not None
        notebook = self.lockstep.running.process
        assert isinstance(notebook, Notebook)
        wire, end = self.lockstep.pair()
        self.broker.lines.append(Line(notebook, end))
        return wire

    # --- progress ---------------------------------------------------------------------------------

    @property
    def here(self) -> list[Notebook]:
        """Return the notebooks that have not announced their end."""
        return [notebook for notebook in self.notebooks if notebook.is_here]

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    @property
    def has_broker(self) -> bool:
        return self._broker is not None

    @property
    def lines(self) -> list[Line]:
        return self.broker.lines if self.has_broker else []

    def moves(self, stops_at_sends: bool) -> list[Callable[[], None]]:
        """Return the possible next events that need no user."""
        return [
            *(partial(self.go_on, thread, stops_at_sends) for thread in self.ready_threads()),
            *(partial(self.hear, line) for line in self.lines if line.has_said),
            *(line.tell for line in self.lines if line.has_to_tell),
        ]

    def hear_admin(self, message: ToBroker, about: Notebook) -> None:
        if isinstance(message, m.SetPolicy) and message.running_lanes is not None:
            self.most_lanes = max(self.most_lanes, message.running_lanes or inf)
        if hasattr(message, "session"):
            message = replace(message, session=about.name)
        self.broker.hear_admin(message)

    def hear(self, line: Line) -> None:
        self.broker.hear(line)

    def ready_threads(self) -> list[Thread]:
        return [
            thread for notebook in self.notebooks for thread in notebook.threads if thread.is_ready
        ]

    def pass_time(self, seconds: float) -> None:
        """Let time pass. A session with a turn under the previous broker comes back within a
        lease."""
        end = self.lockstep.now + seconds
        while self.lockstep.now < end:
            broker, now = self._broker, self.lockstep.now
            next_step = end
            if broker is not None and broker.is_recovering:
                next_step = min(end, now + STEP_SECONDS)
                if next_step + STEP_SECONDS > broker.waits_until:
                    self.exchange()
            if broker is not None and broker.alarm is not None:
                next_step = max(now, min(next_step, broker.alarm))
            self.lockstep.now = next_step
            if broker is not None and broker.alarm is not None and broker.alarm <= next_step:
                broker.ring()

    def exchange(self, *of: Notebook, slow: Collection[Slow] = ()) -> None:
        """Let all messages arrive and all threads continue until none can; or, given `of`, only
        those of these notebooks. Ways in `slow` stay behind."""
        if not slow:
            self.lockstep.hidden.clear()
        among = of or tuple(self.notebooks)
        hearing, saying, going = (
            [each for each in among if (each, way) not in slow] for way in WAYS
        )
        for _ in range(QUIET_STEPS):
            if not any([self._tell_all(hearing), self._hear_all(saying), self._go_on_all(going)]):
                return
        raise AssertionError("they talk without end")

    def _tell_all(self, among: Sequence[Notebook]) -> bool:
        told = [line.tell_all() for line in self.lines if line.notebook in among]
        return any(told)

    def _hear_all(self, among: Sequence[Notebook]) -> bool:
        """Hear all messages, including those of killed notebooks."""
        speaking = [
            line
            for line in self.lines
            if line.has_said and (line.notebook in among or not line.notebook.is_alive)
        ]
        for line in speaking:
            self.hear(line)
        return bool(speaking)

    def _go_on_all(self, among: Sequence[Notebook]) -> bool:
        ready = [thread for thread in self.ready_threads() if thread.process in among]
        for thread in ready:
            self.go_on(thread)
        return bool(ready)

    def go_on(self, thread: Thread, stops_at_sends: bool = False) -> None:
        notebook = thread.process
        assert isinstance(notebook, Notebook)
        notebook.goes_on(thread, stops_at_sends)

    def settle(self) -> None:
        """Let the host settle: all notebooks have found a broker, and failed cells have ended."""
        if not self.has_broker:
            self.start_broker()
        for _ in range(QUIET_STEPS):
            self.exchange()
            failed = [each for each in self.here if each.must_leave and each.is_free]
            for notebook in failed:
                notebook.leaves()
            if not failed and self._all_are_connected():
                return
            self.pass_time(STEP_SECONDS)
        away = [each for each in self.here if each.session._link.client is None]
        absent = self.broker.service.journal.missing if self.broker.is_recovering else ()
        raise AssertionError(f"{away} do not find the broker, and it waits for {absent}")

    def _all_are_connected(self) -> bool:
        found = all(notebook.session._link.client is not None for notebook in self.here)
        return found and not self.broker.is_recovering

    # --- invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at any time."""
        if self.has_broker:
            assert self.broker.scheduler.is_valid() == ""
            assert self.broker.service.is_valid() == ""
        holders = [each for each in self.here if each.has_turn]
        lanes = [each.memory.lane for each in holders if each.memory.lane is not None]
        assert len(lanes) == len(set(lanes)), f"{holders} have one lane"
        assert len(holders) <= self.most_lanes, f"{holders} have turns"
        without = [each for each in self.here if each.is_inside and not each.has_turn]
        assert not without, f"{without} compute without a turn"
        out = [each for each in holders if each.memory.is_out or each.session.paged_out_bytes]
        assert not out, f"{out} compute with their memory paged out"
        uncounted = [each for each in self.here if each.session._link.rests and each.memory.live()]
        assert not uncounted, f"{uncounted} rest, and have memory on the device"
        on_roll = RecoveryJournal(self._roll_file).missing
        unknown = [each for each in holders if _held_by(each.session) not in on_roll]
        assert not unknown, f"the next broker would not know that {unknown} have turns"

    def agree(self) -> None:
        self.settle()
        self.check()
        self.check_agreement()

    def check_agreement(self) -> None:
        """Check that the broker and the notebooks agree, once the host has settled."""
        device_snapshot = self.broker.scheduler.snapshot("host", self.lockstep.now)
        check_safety(device_snapshot)
        states = {each.id: each for each in device_snapshot.sessions}
        ours = [each for each in self.here if isinstance(each.session._turn.refusal, OF_OURS)]
        assert not ours, f"{ours} have said what the broker does not understand"
        registered = [each for each in self.here if not each.session._link.rests]
        assert set(states) == {notebook.name for notebook in registered}
        for notebook in registered:
            session, state = notebook.session, states[notebook.name]
            waits = session._turn.waiting or session._residency.returning
            if not waits and session._residency.busy and session.paged_out_bytes:
                # Its user has interrupted the wait for its page-in, and the cell goes on. It hears
                # that there is room when it asks for a turn.
                assert not notebook.has_turn, notebook
                assert state.waiting is not None or not state.paged_out_bytes, notebook
                continue
            is_waiting = waits and not notebook.has_turn
            assert notebook.has_turn == (state.state in ("running", "overdue")), notebook
            assert is_waiting == (state.waiting is not None), notebook
            assert is_waiting or notebook.is_free, f"{notebook} waits for nothing"
            assert bool(session.paged_out_bytes) == bool(state.paged_out_bytes), notebook
            assert notebook.memory.is_out == bool(state.paged_out_bytes), notebook
            if notebook.has_turn or session._turn.waiting:
                assert session._turn.number == state.turn, notebook

    def go_round(self) -> None:
        """Check that, under a fair policy, each waiting session gets a turn although all others ask
        again at once."""
        self.settle()
        if self.broker.scheduler.policy("host") not in FAIR:
            self.broker.hear_admin(m.SetPolicy("fair"))
        for notebook in self.here:
            notebook.memory.alive = 0
            self.hear_admin(m.Change(paused=False, priority=0), notebook)
        self.exchange()
        waiting = self._waiting_with_room()
        for _ in range(ROUNDS):
            self.check()
            if not (waiting := _without_turn(waiting)):
                return
            self.pass_time(ROUND_SECONDS)
            self.exchange()
            # before a session that has failed gives its turn back
            waiting = _without_turn(waiting)
            for notebook in [each for each in self.here if each.is_free]:
                notebook.leaves() if notebook.must_leave else notebook.begins()
            self.exchange()
        raise AssertionError(f"{waiting} are passed over again and again")

    def _waiting_with_room(self) -> list[Notebook]:
        device_snapshot = self.broker.scheduler.snapshot("host", self.lockstep.now)
        placed = {each.id for each in device_snapshot.sessions if each.lane is not None}
        return [each for each in self.here if each.session._turn.waiting and each.name in placed]

    def serve(self) -> None:
        """Let each waiting session have its turn and end; no session asks again. Check that each
        gets a turn after at most one turn of each other session."""
        self.settle()
        for notebook in self.here:
            self.hear_admin(m.Change(paused=False), notebook)
        turns = len(self.here)
        while self.here:
            self.agree()
            holders = [each for each in self.here if each.has_turn]
            idle = [each for each in self.here if each not in holders and each.is_free]
            assert holders or idle, f"nobody has a turn, and {self.here} wait"
            assert turns >= 0, f"{self.here} wait for longer than there are others"
            turns -= bool(holders)
            for notebook in holders:
                notebook.memory.alive = 0
                notebook.leaves()
                self.settle()
            for notebook in (*holders, *idle):
                notebook.closes()
        self.exchange()
        assert not self.broker.service.has_sessions


def _held_by(session: Session) -> HeldTurn:
    return HeldTurn(session.id, session._turn.number, session._turn.handoff_slot.name)


def _without_turn(notebooks: Sequence[Notebook]) -> list[Notebook]:
    return [each for each in notebooks if each.is_here and not each.has_turn]


def check_safety(device_snapshot: DeviceSnapshot) -> None:
    """Check that persistent memory and lanes, each as large as its largest member, fit. A holder
    may have outgrown its lane until it leaves the lane at a boundary."""
    size = {lane.id: lane.bytes for lane in device_snapshot.lanes}
    assert device_snapshot.persistent + sum(size.values()) <= device_snapshot.capacity
    for each in device_snapshot.sessions:
        if each.lane is not None and each.state not in ("running", "overdue"):
            assert each.demand.ephemeral <= size[each.lane], each.name
