"""Messages in, messages out: what each means for the scheduler of its device.

No socket and no clock here: time is an argument, and a peer is whoever can be sent messages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _core, protocol
from .._version import __version__
from ..devices import Device
from ..errors import (
    DoesNotFit,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    NotPermitted,
    ProtocolError,
    UnknownDevice,
    UnknownSession,
)
from ..protocol import (
    PROTOCOL,
    Change,
    Close,
    Demand,
    Done,
    Error,
    Finish,
    Grant,
    Hello,
    Look,
    Message,
    Open,
    Opened,
    Report,
    Request,
    SetPolicy,
    Shutdown,
    Snapshot,
    ToBroker,
    Wait,
    Watch,
    Welcome,
    Yield,
)
from ..settings import Settings

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_NAME_LENGTH = 200
MAX_WEIGHT = 1000.0
MAX_PRIORITY = 100
FIRST_WAIT_SECONDS = 0.5  # shorter waits are not worth a message
WAIT_INTERVAL_SECONDS = 0.5
LEAST_WATCH_SECONDS = 0.05


class Peer:
    """A connection, as the service sees it. `uid`, `pid` and `user` are the kernel's word."""

    uid: int
    pid: int
    user: str
    greeted = False
    session: str | None = None

    def send(self, *messages: Message) -> None:
        raise NotImplementedError

    def send_frame(self, frame: bytes) -> None:
        raise NotImplementedError

    def is_behind(self) -> bool:
        """Whether it has not read yet what it was sent."""
        raise NotImplementedError


class Place(NamedTuple):
    """Where a session's messages go, and which scheduler has it."""

    peer: Peer
    device: str


class Watcher:
    """A looker that wants each change, at most one per interval."""

    def __init__(self, interval: float) -> None:
        self.interval = max(interval, LEAST_WATCH_SECONDS)
        self.seen = -1  # sequence of the last snapshot it got
        self.due = 0.0


class Service:
    """All state of a broker. Every method that takes `now` takes monotonic seconds."""

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[Device],
        *,
        started: float,
        grants_from: float = 0.0,
    ) -> None:
        """`started` is Unix time. Before `grants_from` no request is looked at: after a crash the
        sessions that still hold a turn must be heard first."""
        self._settings = settings
        self._started = started
        self._schedulers = {
            device.name: _core.Scheduler(device.capacity_bytes, settings.policy, _rules(settings))
            for device in devices
        }
        self._default = devices[0].name
        self._places: dict[str, Place] = {}
        self._watchers: dict[Peer, Watcher] = {}
        self._grants_from = grants_from
        self._deferred: dict[str, int] = {}  # session -> turn, asked for before `grants_from`
        self._refused: set[str] = set()  # sessions that were told that their demand does not fit
        self._sequence = 0
        self._snapshot_frame = (-1, b"")
        self._next_wait = 0.0
        self.is_stopping = False

    # --- connections -------------------------------------------------------------------------

    def handle(self, peer: Peer, message: ToBroker, now: float) -> None:
        """React to one message. A message that is refused changes nothing and gets an Error."""
        try:
            if not peer.greeted and not isinstance(message, Hello):
                raise ProtocolError(f"the first message is Hello, not {type(message).__name__}")
            _HANDLERS[type(message)](self, peer, message, now)
        except GpuShareError as error:
            peer.send(Error(error.code, str(error)))
        except KeyError as error:
            peer.send(Error(UnknownSession.code, f"no session has the id {error}"))
        except OverflowError as error:
            peer.send(Error(DoesNotFit.code, str(error)))
        except ValueError as error:
            peer.send(Error(InvalidValue.code, str(error)))

    def lost(self, peer: Peer, now: float) -> None:
        """The connection ended: its session's place is free at once."""
        self._watchers.pop(peer, None)
        if peer.session is not None:
            self._close(peer.session, now)

    # --- time --------------------------------------------------------------------------------

    def next_event(self, now: float) -> float | None:
        """When `pass_time` has something to do that no message announces."""
        times = [scheduler.next_event(now) for scheduler in self._schedulers.values()]
        if self._deferred:
            times.append(self._grants_from)
        return min((time for time in times if time is not None), default=None)

    def pass_time(self, now: float) -> None:
        if self._deferred and now >= self._grants_from:
            self._take_deferred(now)
        for scheduler in self._schedulers.values():
            self._enact(scheduler.assign(now))

    def tick(self, now: float) -> None:
        """Tell waiters why they wait and lookers what has changed; call it ten times a second."""
        if now >= self._next_wait:
            self._next_wait = now + WAIT_INTERVAL_SECONDS
            self._tell_waiters(now)
        for peer, watcher in self._watchers.items():
            self._show(peer, watcher, now)

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            version=__version__,
            broker=protocol.BrokerView(os.getpid(), PROTOCOL, self._started),
            policy=next(iter(self._schedulers.values())).policy,
            policies=[protocol.PolicyView(name, text) for name, text in _core.policies()],
            sequence=self._sequence,
            devices=[self._device(name, now) for name in self._schedulers],
        )

    # --- one handler per message ---------------------------------------------------------------

    def _hello(self, peer: Peer, message: Hello, now: float) -> None:
        if message.protocol != PROTOCOL:
            raise ProtocolError(
                f"this broker speaks protocol {PROTOCOL}, not {message.protocol}:"
                " restart the kernel, or the broker, so that both are of one version"
            )
        peer.greeted = True
        peer.send(Welcome(PROTOCOL, __version__, os.getpid()))

    def _open(self, peer: Peer, message: Open, now: float) -> None:
        device = self._default if message.device == "auto" else message.device
        self._check_open(peer, message, device)
        scheduler = self._schedulers[device]
        defers = message.waiting and now < self._grants_from
        decision = scheduler.open(now, message.id, _spec(peer, message, defers))
        self._settle(peer, message.id, device)
        if defers:
            self._deferred[message.id] = message.turn
        peer.send(Opened(message.id, device))
        self._enact(decision)

    def _close_own(self, peer: Peer, message: Close, now: float) -> None:
        if peer.session is not None:
            self._close(peer.session, now)
        peer.send(Done())

    def _request(self, peer: Peer, message: Request, now: float) -> None:
        session = _own(peer)
        self._refused.discard(session)
        if now < self._grants_from:
            self._deferred[session] = message.turn
        else:
            self._enact(self._scheduler(session).request(now, session, message.turn))

    def _finish(self, peer: Peer, message: Finish, now: float) -> None:
        session = _own(peer)
        if self._deferred.get(session) == message.turn:
            del self._deferred[session]
        self._enact(self._scheduler(session).finish(now, session, message.turn))

    def _report(self, peer: Peer, message: Report, now: float) -> None:
        session = _own(peer)
        if message.iterations < 0 or (message.remaining_iterations or 0) < 0:
            raise InvalidValue("iterations are counted from 0 upwards")
        demand = _demand(message.demand)
        remaining = message.remaining_iterations
        scheduler = self._scheduler(session)
        try:
            decision = scheduler.report(now, session, message.iterations, demand, remaining)
        except OverflowError as error:
            self._refuse_demand(peer, session, str(error))
        else:
            self._refused.discard(session)
            self._enact(decision)

    def _change(self, peer: Peer, message: Change, now: float) -> None:
        session = message.session if message.session is not None else _own(peer)
        self._check_change(peer, session, message.weight, message.priority)
        decision = self._scheduler(session).change(
            now, session, weight=message.weight, priority=message.priority, paused=message.paused
        )
        peer.send(Done())
        self._enact(decision)

    def _set_policy(self, peer: Peer, message: SetPolicy, now: float) -> None:
        self._check_administrator(peer, "choose the policy")
        devices = [message.device] if message.device else list(self._schedulers)
        for device in devices:
            scheduler = self._scheduler_of_device(device)
            if message.policy is not None:
                self._enact(scheduler.set_policy(now, message.policy))
            if message.running_lanes is not None:
                self._enact(scheduler.set_running_lanes(now, message.running_lanes))
        peer.send(Done())

    def _look(self, peer: Peer, message: Look, now: float) -> None:
        peer.send(self.snapshot(now))

    def _watch(self, peer: Peer, message: Watch, now: float) -> None:
        self._watchers[peer] = watcher = Watcher(message.interval_seconds)
        self._show(peer, watcher, now)

    def _shutdown(self, peer: Peer, message: Shutdown, now: float) -> None:
        self._check_administrator(peer, "end the broker")
        peer.send(Done())
        self.is_stopping = True

    # --- rules -------------------------------------------------------------------------------

    def _check_open(self, peer: Peer, message: Open, device: str) -> None:
        self._scheduler_of_device(device)
        if not ID.fullmatch(message.id):
            raise InvalidValue("a session's id is 1 to 64 letters, digits, - or _")
        if peer.session not in (None, message.id):
            raise ProtocolError("this connection has a session already; one connection carries one")
        place = self._places.get(message.id)
        if place is not None and place.peer.uid != peer.uid:
            raise NotPermitted(f"the session {message.id} belongs to somebody else")
        if place is None:
            self._check_room(peer)
        if place is not None and place.device != device:
            raise InvalidValue(f"the session {message.id} is open on the device {place.device}")
        _check_counts(message)
        self._check_values(peer, message.weight, message.priority)

    def _check_room(self, peer: Peer) -> None:
        own = sum(place.peer.uid == peer.uid for place in self._places.values())
        for count, limit, whose in (
            (len(self._places), self._settings.max_sessions, "this broker"),
            (own, self._settings.max_sessions_per_user, f"each user; {peer.user} has them"),
        ):
            if count >= limit:
                raise LimitExceeded(f"{limit} sessions are the limit of {whose}: close one first")

    def _check_values(self, peer: Peer, weight: float | None, priority: int | None) -> None:
        if weight is not None and not 0 < weight <= MAX_WEIGHT:
            raise InvalidValue(f"a weight is above 0 and at most {MAX_WEIGHT:g}, not {weight:g}")
        if priority is not None and not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidValue(
                f"a priority is from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}"
            )
        if priority is not None and priority > 0:
            self._check_administrator(peer, "set a priority above 0")

    def _check_change(
        self, peer: Peer, session: str, weight: float | None, priority: int | None
    ) -> None:
        place = self._places.get(session)
        if place is None:
            raise UnknownSession(f"no session has the id {session}")
        if peer.uid != place.peer.uid and not _is_administrator(peer):
            raise NotPermitted("a session is changed by its owner or by the broker's")
        self._check_values(peer, weight, priority)

    def _check_administrator(self, peer: Peer, deed: str) -> None:
        if not _is_administrator(peer):
            raise NotPermitted(f"only the user who runs the broker may {deed}")

    # --- parts -------------------------------------------------------------------------------

    def _settle(self, peer: Peer, session: str, device: str) -> None:
        """Note where the session is; an older connection of the same session loses it."""
        former = self._places.get(session)
        if former is not None and former.peer is not peer:
            former.peer.session = None
        self._places[session] = Place(peer, device)
        peer.session = session

    def _close(self, session: str, now: float) -> None:
        place = self._places.pop(session)
        place.peer.session = None
        self._deferred.pop(session, None)
        self._refused.discard(session)
        self._enact(self._schedulers[place.device].close(now, session))

    def _refuse_demand(self, peer: Peer, session: str, sentence: str) -> None:
        """Say it once until the session asks for a turn again, however often it reports."""
        if session not in self._refused:
            self._refused.add(session)
            peer.send(Error(DoesNotFit.code, sentence))

    def _take_deferred(self, now: float) -> None:
        deferred, self._deferred = self._deferred, {}
        for session, turn in deferred.items():
            self._enact(self._scheduler(session).request(now, session, turn))

    def _scheduler(self, session: str) -> _core.Scheduler:
        return self._schedulers[self._places[session].device]

    def _scheduler_of_device(self, device: str) -> _core.Scheduler:
        if device not in self._schedulers:
            there = ", ".join(self._schedulers)
            raise UnknownDevice(f"there is no device {device!r} here; there is {there}")
        return self._schedulers[device]

    def _enact(self, decision: _core.Decision) -> None:
        """Send what was decided. Every event comes through here, so here the picture is old."""
        self._sequence += 1
        if decision:
            for grant in decision.grants:
                self._places[grant.session].peer.send(Grant(grant.turn, grant.lane))
            for wish in decision.yields:
                self._places[wish.session].peer.send(Yield(wish.turn))

    def _tell_waiters(self, now: float) -> None:
        for scheduler in self._schedulers.values():
            if not len(scheduler):
                continue
            picture = scheduler.picture(now)
            names = {state.id: state.name for state in picture.sessions}
            holders = {lane.id: names[lane.holder] for lane in picture.lanes if lane.holder}
            anybody = next(iter(holders.values()), None)
            for state in picture.sessions:
                if state.waiting is not None and state.waiting >= FIRST_WAIT_SECONDS:
                    holder = holders.get(state.lane or 0, anybody)
                    self._tell(self._places[state.id].peer, state, holder)

    def _tell(self, peer: Peer, state: _core.SessionState, holder: str | None) -> None:
        if not peer.is_behind():
            peer.send(
                Wait(
                    turn=state.turn,
                    place=state.place or 1,
                    waiting_seconds=state.waiting or 0.0,
                    reason=state.reason,
                    holder=holder,
                    expected_seconds=state.expected_wait,
                )
            )

    def _show(self, peer: Peer, watcher: Watcher, now: float) -> None:
        """The newest snapshot, unless it has seen it, had one just now, or does not read."""
        if watcher.seen != self._sequence and now >= watcher.due and not peer.is_behind():
            watcher.seen, watcher.due = self._sequence, now + watcher.interval
            peer.send_frame(self._frame(now))

    def _frame(self, now: float) -> bytes:
        """The encoded snapshot, made once for all lookers."""
        if self._snapshot_frame[0] != self._sequence:
            self._snapshot_frame = (self._sequence, protocol.encode(self.snapshot(now)))
        return self._snapshot_frame[1]

    def _device(self, name: str, now: float) -> protocol.DeviceView:
        picture = self._schedulers[name].picture(now)
        return protocol.DeviceView(
            name=name,
            capacity_bytes=picture.capacity,
            persistent_bytes=picture.persistent,
            free_bytes=picture.free,
            running_lanes=picture.running_lanes,
            lanes=[
                protocol.LaneView(lane.id, lane.bytes, lane.holder, list(lane.members))
                for lane in picture.lanes
            ],
            sessions=[self._session(state) for state in picture.sessions],
        )

    def _session(self, state: _core.SessionState) -> protocol.SessionView:
        return protocol.SessionView(
            id=state.id,
            name=state.name,
            user=state.user,
            pid=self._places[state.id].peer.pid,
            state=state.state,
            persistent_bytes=state.demand.persistent,
            ephemeral_bytes=state.demand.ephemeral,
            measured=state.demand.measured,
            lane=state.lane,
            place=state.place,
            waiting_seconds=state.waiting,
            expected_wait_seconds=state.expected_wait,
            reason=state.reason,
            device_seconds=state.device_seconds,
            waited_seconds=state.waited_seconds,
            iterations=state.iterations,
            remaining_iterations=state.remaining_iterations,
            weight=state.weight,
            priority=state.priority,
        )


_HANDLERS: dict[type[Message], Callable[[Service, Peer, Any, float], None]] = {
    Hello: Service._hello,
    Open: Service._open,
    Close: Service._close_own,
    Request: Service._request,
    Finish: Service._finish,
    Report: Service._report,
    Change: Service._change,
    SetPolicy: Service._set_policy,
    Look: Service._look,
    Watch: Service._watch,
    Shutdown: Service._shutdown,
}


def _rules(settings: Settings) -> _core.Rules:
    return _core.Rules(
        quantum=settings.quantum_seconds,
        half_life=settings.half_life_seconds,
        lease=settings.lease_seconds,
        patience=settings.patience_seconds,
        running_lanes=settings.running_lanes,
    )


def _own(peer: Peer) -> str:
    if peer.session is None:
        raise UnknownSession("this connection has no session: open one first")
    return peer.session


def _is_administrator(peer: Peer) -> bool:
    return peer.uid in (0, os.getuid())


def _demand(demand: Demand) -> _core.Demand:
    if demand.persistent_bytes < 0 or demand.ephemeral_bytes < 0:
        raise InvalidValue("a demand is in bytes, from 0 upwards")
    return _core.Demand(demand.persistent_bytes, demand.ephemeral_bytes, demand.measured)


def _check_counts(message: Open) -> None:
    """What a session brings along is counted from 0 upwards (NaN fails this, too)."""
    counts = (
        message.turn,
        message.iterations,
        message.remaining_iterations or 0,
        message.device_seconds,
        message.waited_seconds,
    )
    if not all(0 <= count < 1 << 62 for count in counts):
        raise InvalidValue("a session's counts and seconds are from 0 upwards")


def _spec(peer: Peer, message: Open, defers: bool) -> _core.SessionSpec:
    return _core.SessionSpec(
        user=peer.user,
        name=_printable(message.name),
        weight=message.weight,
        priority=message.priority,
        demand=_demand(message.demand),
        remaining_iterations=message.remaining_iterations,
        turn=message.turn,
        holding=message.holding,
        waiting=message.waiting and not defers,
        paused=message.paused,
        device_seconds=message.device_seconds,
        waited_seconds=message.waited_seconds,
        iterations=message.iterations,
    )


def _printable(name: str) -> str:
    """A name for other people's screens: no control characters, not endless."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return shown[:MAX_NAME_LENGTH] or "unnamed"
