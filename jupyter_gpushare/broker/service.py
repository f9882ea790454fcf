"""Dispatches each message to the object that it concerns.

There is no socket and no clock here: time is an argument, and a peer is any object that messages
can be sent to. Only rules of hours and days need Unix time, which `clock` returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import _core
from ..devices import Device
from ..errors import (
    DoesNotFit,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    ProtocolError,
    Unidentified,
    UnknownSession,
)
from ..settings import Settings, scheduler_rules
from ..wire import chunks
from ..wire.framing import ToBroker
from ..wire.messages import (
    PROTOCOL,
    UNANSWERED,
    Account,
    AddTicket,
    Busy,
    Cancel,
    Change,
    ClassMode,
    Close,
    Done,
    Error,
    Evict,
    Finish,
    Hello,
    Keep,
    Look,
    Message,
    NewKey,
    Open,
    PagedOut,
    Preempt,
    Report,
    Request,
    Rests,
    SetPolicy,
    Shutdown,
    StaysIn,
    Watch,
)
from ..wire.snapshot import Snapshot, in_words
from . import validation
from .access.identity import Identity
from .access.permissions import Permission
from .access.tickets import Tickets
from .accounting.accounts import AccountBook
from .accounting.meter import Meter
from .accounting.reports import Reports
from .admin.enforcement import Enforcement
from .admin.idle import IdleCulling
from .admin.live_changes import LiveChanges
from .admin.rulebook_file import RulebookFile
from .admin.rules import RuleEngine
from .admission import Admission
from .commands import Commands
from .demands import Demands, too_large
from .grants.grants import Grants
from .grants.recovery import Recovery, RecoveryJournal
from .grants.rooms import Rooms
from .grants.unmanaged import UnmanagedMemory
from .peer import Peer
from .placement import DeviceFinder
from .sessions import Sessions
from .snapshot.builder import SnapshotBuilder
from .snapshot.publisher import Publisher
from .snapshot.visibility import ALL_SEEING, Visibility
from .state import BrokerState
from .turns import Turns

WAIT_INTERVAL_SECONDS = 0.5
COUNT_SECONDS = 1.0  # between two counts of the use by sessions
Handler: TypeAlias = Callable[[Peer, Any, float], None]  # raises if it refuses the message


class Service:
    """All of a broker except its sockets. Each method that takes `now` takes monotonic seconds."""

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[Device],
        *,
        started: float,
        grants_from: float = 0.0,
        rulebook: RulebookFile | None = None,
        accounts: AccountBook | None = None,
        journal: RecoveryJournal | None = None,
        changes: LiveChanges | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`started` is Unix time, which `clock` returns. No turn is granted before `grants_from`,
        or, while a holder on the recovery journal is missing, for another lease. After a crash the
        sessions that still hold a turn must reconnect first."""
        by_name = {device.name: device for device in devices}
        self._settings = settings
        self._devices = [*by_name]
        self._host = _core.Host(
            [(device.name, device.capacity_bytes) for device in devices],
            settings.policy,
            scheduler_rules(settings),
            _core.LEAST_CHUNK,
        )
        self.sessions = Sessions(settings.max_sessions, settings.max_sessions_per_user)
        self.accounts = accounts or AccountBook(clock=clock)
        self.journal = journal or RecoveryJournal()
        self.changes = changes or LiveChanges(settings)
        self.tickets = Tickets()
        self._recovery = Recovery(
            self._host, self.journal, grants_from=grants_from, lease_seconds=settings.lease_seconds
        )
        self._grants = Grants(
            by_name,
            self.sessions,
            self._host,
            self.accounts,
            self.journal,
            settings.share_lanes,
        )
        self._unmanaged = UnmanagedMemory(devices, self._host, self.sessions, self._grants)
        self._rooms = Rooms(self._host, self.sessions)
        self._meter = Meter(self._host, self.sessions, self.accounts)
        self._reports = Reports(self.accounts)
        file = rulebook or RulebookFile(settings.rulebook)
        placement = DeviceFinder(by_name, self._host, self.sessions, self._unmanaged)
        self._rules = RuleEngine(file, self.accounts, self.sessions, placement.capacity)
        self._visibility = Visibility(self._rules, self.sessions)
        state = BrokerState(
            self._devices,
            self._host,
            self.sessions,
            self._grants,
            placement,
            self._rules,
            IdleCulling(self.sessions, settings.lease_seconds),
            self.accounts,
            self.changes,
        )
        self._enforcement = Enforcement(state, clock)
        demands = Demands(state, self._enforcement)
        self._admission = Admission(state, demands, self._meter, self._enforcement)
        commands = Commands(state, self._enforcement, self._visibility)
        turns = Turns(state, self._rooms)
        self._builder = SnapshotBuilder(state, self._enforcement, started)
        self._publisher = Publisher(self.sessions, self._rules, self._visibility, self._builder)
        self._handlers = self._dispatch_table(demands, commands, turns)
        self._next_count = 0.0
        self._next_wait = 0.0
        self.is_stopping = False
        self._has_ended = False
        self._enforcement.resume()
        self._follow_rules()

    def _dispatch_table(
        self, demands: Demands, commands: Commands, turns: Turns
    ) -> dict[type[Message], Handler]:
        return {
            Hello: self._hello,
            Open: self._admission.open,
            Close: self._admission.close,
            NewKey: self._admission.renew_key,
            Rests: self._admission.rest,
            Request: turns.request,
            Finish: turns.finish,
            Busy: turns.busy,
            PagedOut: turns.paged_out,
            StaysIn: turns.stays_in,
            Report: demands.report,
            Keep: demands.keep,
            Change: commands.change,
            Preempt: commands.yield_turn,
            Evict: commands.page_out,
            Cancel: commands.cancel,
            SetPolicy: commands.set_policy,
            ClassMode: commands.set_class,
            Look: self._look,
            AddTicket: self._add_ticket,
            Watch: self._watch,
            Account: self._account,
            Shutdown: self._shutdown,
        }

    # --- connections -------------------------------------------------------------------------

    def handle(self, peer: Peer, message: ToBroker, now: float) -> None:
        """Handle one message. A refused message changes nothing, and is answered by an Error."""
        try:
            if not peer.greeted and not isinstance(message, Hello):
                raise ProtocolError(f"the first message is Hello, not {type(message).__name__}")
            self._handlers[type(message)](peer, message, now)
        except (GpuShareError, KeyError, ValueError, OverflowError) as error:
            is_answer = not (peer.greeted and isinstance(message, UNANSWERED))
            peer.send(Error(*_refusal(error), is_answer))
        self._builder.follow(now)

    def take_chunks(self, peer: Peer, batch: chunks.Batch) -> None:
        """Take the chunks that a session has made for its lane."""
        self._grants.take_chunks(peer, batch)

    def follow_identity(self, peer: Peer, before: Identity) -> None:
        """Follow a change of the user that the connection stands for, or of the user's groups."""
        self.sessions.note_change()
        self.sessions.note_members()
        self._admission.follow_identity(peer, before)

    def lost(self, peer: Peer, now: float) -> None:
        """Remove the session of a connection that has ended: its place is free at once."""
        if self._has_ended:
            return
        self._publisher.forget(peer)
        self._reports.forget(peer)
        self.tickets.forget(peer)
        try:
            self._admission.lose(peer, now)
        finally:
            self._builder.follow(now)

    def end(self) -> None:
        """Stop serving: the broker and its connections end, but the sessions do not. Turns continue
        under the next broker. So the end of a connection grants its turn to no other session from
        now on."""
        self._has_ended = True
        self.journal.leave()

    def close(self, now: float) -> None:
        """Count the use until now, since the broker ends."""
        self._meter.count(self._devices, now)

    def all_have_left(self) -> None:
        """Give back the memory of all lanes, and write the accounts to the database."""
        self._grants.follow_lanes()
        self.accounts.write()

    @property
    def has_sessions(self) -> bool:
        return len(self.sessions) > 0

    def is_valid(self) -> str:
        """Return an empty string, or the first broken invariant of the records in words."""
        return self.sessions.is_valid() or self._grants.is_valid()

    # --- time --------------------------------------------------------------------------------

    def next_event(self, now: float) -> float | None:
        """Return when `pass_time` has something to do that no message announces."""
        times = (self._host.next_event(now), self._recovery.next_event(now))
        return min((time for time in times if time is not None), default=None)

    def pass_time(self, now: float) -> None:
        if (recovered := self._recovery.try_to_end(now)) is not None:
            self._grants.enact(recovered)
        self._grants.enact(self._host.assign(now))
        self._builder.follow(now)

    def tick(self, now: float) -> None:
        """Tell waiting sessions why they wait, all sessions their room, and subscribers the
        changes. Call this ten times a second."""
        if self._rules.follow_file(now):
            self.sessions.note_change()
            self._follow_rules()
            self._enforcement.hasten(now)
        if now >= self._next_count:
            self._next_count = now + COUNT_SECONDS
            self._meter.count(self._devices, now)
            self._enforcement.escalate(now)
        self._enforcement.follow_if_due(now)
        for device in self._devices:
            if self._host.sessions(device):
                self._unmanaged.count(device, now)
        self._builder.follow(now)
        self._reports.answer()
        self._grants.follow_lanes()
        if now >= self._next_wait:
            self._next_wait = now + WAIT_INTERVAL_SECONDS
            self._tell_waiters(now)
        self._publisher.publish(now)

    def _follow_rules(self) -> None:
        rules = self._rules.rules
        self.sessions.note_members()
        self.accounts.follow_rules(rules.accounting.retention_days, rules.time_zone)
        self._admission.follow_rules()

    def _tell_waiters(self, now: float) -> None:
        for device in self._devices:
            if self._host.sessions(device):
                device_snapshot = self._host.snapshot(device, now)
                self._rooms.tell(device_snapshot)
                self._publisher.tell_waiters(device, device_snapshot, now)

    def snapshot(self, now: float) -> Snapshot:
        """Return the state of the broker in words, with all names."""
        return in_words(self._builder.build(now, self._visibility.namer(ALL_SEEING)))

    # --- messages that concern no session ----------------------------------------------------

    def _hello(self, peer: Peer, message: Hello, now: float) -> None:
        if message.protocol != PROTOCOL:
            raise ProtocolError(
                f"this broker speaks protocol {PROTOCOL}, not {message.protocol}:"
                " restart the kernel, or the broker, so that both are of one version;"
                " until then `%gpushare off` lets the notebook go on without sharing"
            )
        if not peer.user:
            raise Unidentified(
                "this broker authenticates users through JupyterHub: send a hub token or a one-time"
                " token of a Jupyter server"
            )
        peer.greeted = True
        self._publisher.greet(peer)

    def _look(self, peer: Peer, message: Look, now: float) -> None:
        self._publisher.show(peer, now)

    def _watch(self, peer: Peer, message: Watch, now: float) -> None:
        limit = self._settings.max_watchers_per_user
        if self._publisher.subscribers_beside(peer) >= limit:
            raise LimitExceeded(f"{limit} watchers are the limit of each user: end one first")
        self._publisher.subscribe(peer, message.interval_seconds)
        self._publisher.publish(now)

    def _add_ticket(self, peer: Peer, message: AddTicket, now: float) -> None:
        self.tickets.add(message.digest, peer, now)
        peer.send(Done())

    def _account(self, peer: Peer, message: Account, now: float) -> None:
        """Begin a report, which a tick sends when the database has been read."""
        validation.check_span(message)
        self._reports.check(peer)
        self._meter.count(self._devices, now)
        self._reports.ask(peer, self._rules.person(peer), message)

    def _shutdown(self, peer: Peer, message: Shutdown, now: float) -> None:
        self._rules.person(peer).check(Permission.END_BROKER)
        peer.send(Done())
        self.is_stopping = True


def _refusal(error: Exception) -> tuple[str, str]:
    """Return the code and the sentence of this error for the client."""
    if isinstance(error, GpuShareError):
        return error.code, str(error)
    if isinstance(error, KeyError):
        return UnknownSession.code, f"no session has the id {error}"
    if isinstance(error, OverflowError):
        return DoesNotFit.code, str(too_large(*error.args))
    return InvalidValue.code, str(error)
