"""Messages in, messages out: what each means for the scheduler of this host.

No socket and no clock here: time is an argument, and a peer is whoever can be sent messages. Only
rules of hours and days need Unix time, which is asked of `clock`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from .. import _core
from .._version import __version__
from ..devices import Device
from ..errors import (
    DoesNotFit,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    NoRoom,
    NotPermitted,
    OverQuota,
    ProtocolError,
    Unidentified,
    UnknownDevice,
    UnknownSession,
)
from ..settings import Settings, scheduler_rules
from ..wire import chunks
from ..wire.framing import ToBroker
from ..wire.messages import (
    PROTOCOL,
    Account,
    Busy,
    Cancel,
    Change,
    ClassMode,
    Close,
    Demand,
    Dismiss,
    Done,
    Error,
    Finish,
    GiveBack,
    Hello,
    Keep,
    Look,
    Message,
    NewKey,
    Notice,
    Open,
    Opened,
    PagedOut,
    PageIn,
    PageOut,
    Recall,
    RenewKey,
    Report,
    Request,
    Rest,
    Rests,
    SetPolicy,
    Shutdown,
    StaysIn,
    Vouch,
    Watch,
    Welcome,
    Withdraw,
    Yield,
)
from ..wire.snapshot import WAITING, BrokerView, PolicyView, Snapshot, in_words
from . import validation as rules
from .access.permissions import Deed, Object
from .access.tickets import Tickets
from .accounting.accounts import Accounts, Past
from .accounting.reports import Reports
from .admin.idle import Caretaker, Due, Resting
from .admin.quotas import Claim
from .admin.reservations import CLASS_POLICY
from .admin.rulebook import RulebookFile
from .admin.rules import ALL_SEEING, Governor, Orders
from .grants.grants import Place, Turns
from .grants.recovery import Roll
from .grants.unmanaged import Foreign
from .peer import Peer
from .snapshot import views as translation
from .snapshot.history import History, Holder
from .snapshot.names import Namer
from .snapshot.publisher import Audience

log = logging.getLogger("jupyter_gpushare.broker")
WAIT_INTERVAL_SECONDS = 0.5
GOVERN_SECONDS = 0.25  # between two looks at what the rules ask for
ROLL_SECONDS = 0.05  # between two looks whether all have come back
COUNT_SECONDS = 1.0  # between two looks at who has used what
OUTGROWN = (
    "this notebook {refusal}, so it goes on only while it is alone on the device, and waits until"
    " it is: `del` what is not needed any more, and run `%gpushare tidy`"
)
STEPS: dict[str, type[GiveBack] | type[Rest]] = {"caches": GiveBack, "release": Rest}


class Service:
    """All state of a broker. Every method that takes `now` takes monotonic seconds."""

    def __init__(
        self,
        settings: Settings,
        devices: Sequence[Device],
        *,
        started: float,
        grants_from: float = 0.0,
        rulebook: RulebookFile | None = None,
        accounts: Accounts | None = None,
        roll: Roll | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`started` is Unix time, which `clock` says. Nobody is granted anything before
        `grants_from`, nor for a lease after it while somebody on the roll is absent: after a crash
        the sessions that still hold a turn must be heard first."""
        self._settings = settings
        self._started = started
        self._devices = {device.name: device for device in devices}
        self._host = _core.Host(
            [(device.name, device.capacity_bytes) for device in devices],
            settings.policy,
            scheduler_rules(settings),
        )
        self._foreign = Foreign(devices)
        self._places: dict[str, Place] = {}
        self._roll = roll or Roll()
        self._turns = Turns(self._devices, self._places, self._host.lane_bytes, self._roll)
        self.accounts = accounts or Accounts(clock=clock)
        self._next_count = 0.0
        self._caretaker = Caretaker()
        self._reports = Reports(self.accounts)
        self.tickets = Tickets()
        self._grants_from = grants_from
        self._recovering = grants_from > 0.0
        self._host.set_recovering(0.0, self._recovering)
        self._refused: set[str] = set()  # sessions that were told that their demand does not fit
        self._fitted: set[str] = set()  # sessions that have reported a demand that does
        self._outgrown: set[str] = set()  # of these, those that were told that it does no more
        self._sequence = 0
        self._histories = {device.name: History() for device in devices}
        self._governor = Governor(rulebook or RulebookFile(settings.rulebook), self.accounts)
        self._audience = Audience(self._governor, self._places, self._caretaker, self._snapshot)
        self._follow_rules()
        self._clock = clock
        self._orders: dict[str, Orders] = {}
        self._plans = self._governor.plans(clock())
        self._next_govern = 0.0
        self._next_wait = 0.0
        self.is_stopping = False
        self._has_ended = False

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
        self._conclude(now)

    def lost(self, peer: Peer, now: float) -> None:
        """The connection ended: its session's place is free at once."""
        if self._has_ended:
            return
        self._audience.leave(peer)
        self._reports.forget(peer)
        self._end_rest(peer)
        self.tickets.forget(peer)
        if peer.session is not None:
            self._turns.lost(peer.session, now)
            try:
                self._turns.leave_lane_to(peer, peer.session)
            finally:  # whatever goes wrong with its memory, nobody waits for it
                self._close(peer.session, now)
                self._conclude(now)

    def end(self) -> None:
        """Connections end with this broker, not with their sessions: turns go on at the next one,
        and nobody is granted what the first of them seems to leave."""
        self._has_ended = True
        self._roll.leave()

    def close(self, now: float) -> None:
        """The broker ends: what was used until now is counted."""
        for device in self._devices:
            self._count(device, now)

    def all_have_left(self) -> None:
        """No memory of a lane stays with the broker, and what was used is in the database."""
        self._turns.follow_lanes()
        self.accounts.write()

    @property
    def has_sessions(self) -> bool:
        return bool(self._places)

    # --- time --------------------------------------------------------------------------------

    def next_event(self, now: float) -> float | None:
        """When `pass_time` has something to do that no message announces."""
        times = [self._host.next_event(now)]
        if self._recovering:
            times.append(max(self._grants_from, now + ROLL_SECONDS))
        return min((time for time in times if time is not None), default=None)

    def pass_time(self, now: float) -> None:
        if self._recovering and self._have_come_back(now):
            self._end_recovery(now)
        self._enact(self._host.assign(now))
        self._conclude(now)

    def _have_come_back(self, now: float) -> bool:
        """All who had turns before this broker; or they had a lease's time for it, and are overdue:
        they compute in memory of their own, as no lane of this broker is theirs."""
        if now < self._grants_from:
            return False
        return self._roll.is_complete() or now >= self._grants_from + self._settings.lease_seconds

    def _end_recovery(self, now: float) -> None:
        self._recovering = False
        for held in self._roll.absent:
            log.warning("the session %s had turn %d, and is away", held.session, held.turn)
        self._roll.absent.clear()
        self._enact(self._host.set_recovering(now, False))

    def tick(self, now: float) -> None:
        """Tell waiters why they wait and lookers what has changed; call it ten times a second."""
        if self._governor.follow_file():
            self._sequence += 1
            self._audience.look_around()
            self._follow_rules()
            self._next_govern = now
        if now >= self._next_count:
            self._next_count = now + COUNT_SECONDS
            for device in self._devices:
                self._count(device, now)
            self._take_care(now)
        if now >= self._next_govern:
            self._govern(now)
        for device in self._devices:
            if self._host.sessions(device):
                self._count_foreign(device, now)
        self._conclude(now)
        self._reports.answer()
        self._turns.follow_lanes()
        if now >= self._next_wait:
            self._next_wait = now + WAIT_INTERVAL_SECONDS
            self._tell_waiters(now)
        self._audience.show_all(self._sequence, now)

    def snapshot(self, now: float) -> Snapshot:
        """As whoever may see all names reads it."""
        return in_words(self._snapshot(now, self._audience.namer(ALL_SEEING)))

    def _snapshot(self, now: float, namer: Namer) -> Snapshot:
        """With the names that `namer` knows, and without sentences."""
        return Snapshot(
            version=__version__,
            broker=BrokerView(
                os.getpid(), PROTOCOL, self._started, self.accounts.trouble, self._recovering
            ),
            policy=self._host.policy(next(iter(self._devices))),
            policies=[PolicyView(name, text) for name, text in _core.policies()],
            sequence=self._sequence,
            devices=[
                translation.device_view(
                    name,
                    self._host.picture(name, now),
                    self._places,
                    self._histories[name].turns(now),
                    self._histories[name].users(now),
                    namer,
                    self._caretaker,
                    now,
                )
                for name in self._devices
            ],
            interventions=self._caretaker.interventions(now),
            groups=self._governor.groups(),
            classes=self._plans.classes,
            reservations=self._plans.reservations,
            rulebook_error=self._governor.error,
        )

    # --- one handler per message ---------------------------------------------------------------

    def _hello(self, peer: Peer, message: Hello, now: float) -> None:
        if message.protocol != PROTOCOL:
            raise ProtocolError(
                f"this broker speaks protocol {PROTOCOL}, not {message.protocol}:"
                " restart the kernel, or the broker, so that both are of one version;"
                " until then `%gpushare off` lets the notebook go on without sharing"
            )
        if not peer.user:
            raise Unidentified("this broker serves a JupyterHub, and is to be shown who asks")
        peer.greeted = True
        is_administrator = self._governor.person(peer).is_admin
        peer.send(Welcome(PROTOCOL, __version__, os.getpid(), peer.user, is_administrator))

    def _open(self, peer: Peer, message: Open, now: float) -> None:
        rules.check_open(message)
        devices = self._devices_for(peer, message, now)
        place = self._place(peer, message, devices)
        claim = Claim(peer.user, place.group, place.devices)
        said, message = message, self._borne_out(peer, message, now)
        self._check_open(peer, message, claim.with_demand(message.demand), now)
        for device in devices:
            self._count_foreign(device, now, peer)
        decision, refusal = self._admit(place, message, claim.with_demand(message.demand), now)
        self._caretaker.wake(message.id)
        self._end_rest(peer)  # of another session: one connection carries one
        self._settle(peer, message.id, place)
        self._turns.is_back(message.id)
        self._governor.quotas.adopt(message.id, claim)
        for device in devices:
            self._count(device, now, message.id)
        self._welcome_session(peer, message.id, place)
        self._answer_demand(peer, message.id, message.demand, refusal)
        if message.holding:
            self._turns.adopt(message.id, message.turn)
        elif said.holding:
            peer.send_soon(Yield(said.turn))  # it has no turn here, and asks for one as all do
        self._enact(decision)
        self._forget_orders(message.id, devices)
        self._govern(now)
        if message.waiting:  # only now, when it is held back if the rules hold it back
            self._enact(self._host.request(now, message.id, message.turn))

    def _borne_out(self, peer: Peer, message: Open, now: float) -> Open:
        """The message with as much of its session's past as this broker has seen, or as the one
        before has left word of."""
        if message.id in self._places:
            for device in self._places[message.id].devices:
                self._count(device, now, message.id)
        has_turn = message.holding and self._turns.bears_out(message.id, message.turn, now)
        had_turn = has_turn and self._turns.is_of_before(message.id)
        said = Past(message.device_seconds, message.waited_seconds)
        past = self.accounts.past(now, message.id, peer.user, said, had_turn)
        return replace(message, holding=has_turn, **past._asdict())

    def _admit(
        self, place: Place, message: Open, claim: Claim, now: float
    ) -> tuple[_core.Decision, DoesNotFit | None]:
        """Who has been here before comes back whatever it needs by now, since it may have a turn:
        nobody runs beside it, and it is refused as after a Report."""
        if message.turn and message.iterations:
            self._fitted.add(message.id)
        try:
            if message.holding:
                self._governor.check_memory(message.id, claim, self._capacity(place.devices))
            return self._register(place, message, now), None
        except OverQuota as error:
            refusal: DoesNotFit = error
        except OverflowError as error:
            if not message.turn:
                raise
            refusal = DoesNotFit(str(error))
        demand = self._whole_device(place.devices, message.demand)
        return self._register(place, replace(message, demand=demand), now), refusal

    def _whole_device(self, devices: Sequence[str], demand: Demand) -> Demand:
        """What stands for a demand that is larger than that: nobody is beside such a session."""
        capacity = self._capacity(devices)
        return Demand(min(demand.persistent_bytes, capacity), 0, measured=False)

    def _register(self, place: Place, message: Open, now: float) -> _core.Decision:
        return self._host.open(now, message.id, place.devices, translation.spec(place, message))

    def _place(self, peer: Peer, message: Open, devices: Sequence[str]) -> Place:
        group, domain = self._belonging(peer)
        name = translation.printable(message.name)
        gang = tuple(devices) if len(devices) > 1 else ()
        return Place(peer, devices[0], domain, message.mailbox, message.key, name, group, gang)

    def _belonging(self, peer: Peer) -> tuple[str, str]:
        """Its group, and with whom it shares memory."""
        group = self._governor.group_of(peer)
        return group, self._governor.rules.domain_of(peer.user, group)

    def _welcome_session(self, peer: Peer, session: str, place: Place) -> None:
        told = self._devices[place.device]
        peer.page_ins = 0
        if place.gang:
            uuids = [self._devices[device].uuid for device in place.gang]
            capacity, gang = self._capacity(place.gang), list(place.gang)
            peer.send(Opened(session, told.name, capacity, 0, told.uuid, gang, uuids))
            return
        opened = Opened(session, told.name, told.capacity_bytes, told.chunk_bytes, told.uuid)
        if told.chunk_bytes:
            peer.open_channel(opened)
        else:
            peer.send(opened)

    def _capacity(self, devices: Sequence[str]) -> int:
        """Of the smallest."""
        return min(self._devices[device].capacity_bytes for device in devices)

    def _close_own(self, peer: Peer, message: Close, now: float) -> None:
        self._end_rest(peer)
        if peer.session is not None:
            session, place = peer.session, self._places[peer.session]
            self._close(session, now)
            for device in place.devices:
                self.accounts.closed(translation.account(session, place, device))
        peer.send(Done())

    def _new_key(self, peer: Peer, message: NewKey, now: float) -> None:
        session = _own(peer)
        rules.check_key(message.key)
        self._places[session] = self._places[session]._replace(key=message.key)

    def _request(self, peer: Peer, message: Request, now: float) -> None:
        session = _own(peer)
        rules.check_turn(message.turn)
        self._refused.discard(session)
        self._turns.are_over(session, message.turn - 1)
        self._enact(self._host.request(now, session, message.turn))

    def _finish(self, peer: Peer, message: Finish, now: float) -> None:
        session = _own(peer)
        rules.check_turn(message.turn)
        self._turns.are_over(session, message.turn)
        self._enact(self._host.finish(now, session, message.turn))

    def _report(self, peer: Peer, message: Report, now: float) -> None:
        session = _own(peer)
        rules.check_report(message)
        refusal = self._over_quota(session, message.demand)
        demand = self._counted(session, message.demand, refusal)
        remaining = message.remaining_iterations
        try:
            decision = self._host.report(now, session, message.iterations, demand, remaining)
        except OverflowError as error:
            refusal = DoesNotFit(str(error))
            if session in self._fitted:
                self._outgrew(session, message, now)
        else:
            if message.iterations:
                self._fitted.add(session)
            self._enact(decision)
        self._answer_demand(peer, session, message.demand, refusal)

    def _outgrew(self, session: str, message: Report, now: float) -> None:
        """It needs more than the whole device, and runs already: it waits until it has all."""
        demand = self._whole_device(self._places[session].devices, message.demand)
        counted, remaining = translation.demand(demand), message.remaining_iterations
        self._enact(self._host.report(now, session, message.iterations, counted, remaining))

    def _over_quota(self, session: str, demand: Demand) -> DoesNotFit | None:
        capacity = self._capacity(self._places[session].devices)
        try:
            self._governor.check_demand(session, demand, capacity)
        except OverQuota as refusal:
            return refusal
        return None

    def _counted(self, session: str, demand: Demand, refusal: DoesNotFit | None) -> _core.Demand:
        """Who has more than it may runs alone: so its lane does not grow at others' cost."""
        if refusal is None:
            return translation.demand(demand)
        ephemeral = self._governor.quotas.allowed(session).ephemeral_bytes
        return _core.Demand(demand.persistent_bytes, ephemeral, measured=False)

    def _answer_demand(
        self, peer: Peer, session: str, demand: Demand, refusal: DoesNotFit | None
    ) -> None:
        """Refuse once until the session asks for a turn again, however often it reports. One that
        has fitted before does not fail for having grown: it is told once, until it fits again."""
        if refusal is None:
            self._refused.discard(session)
            self._outgrown.discard(session)
            self._governor.quotas.claim(session, demand)
        elif session in self._fitted and refusal.code == DoesNotFit.code:
            if session not in self._outgrown:
                self._outgrown.add(session)
                peer.send(Notice(OUTGROWN.format(refusal=refusal)))
        elif session not in self._refused:
            self._refused.add(session)
            peer.send(Error(refusal.code, str(refusal)))

    def _keep(self, peer: Peer, message: Keep, now: float) -> None:
        session = _own(peer)
        rules.check_demand(message.demand)
        if (refusal := self._over_quota(session, message.demand)) is not None:
            raise refusal
        if not self._host.may_keep(session, message.demand.persistent_bytes):
            free = min(self._host.free(device) for device in self._places[session].devices)
            raise NoRoom(f"the device has {free} bytes free, which is too little")
        decision = self._host.report(now, session, 0, translation.demand(message.demand), None)
        self._governor.quotas.claim(session, message.demand)
        peer.send(Done())
        self._enact(decision)

    def _busy(self, peer: Peer, message: Busy, now: float) -> None:
        session = _own(peer)
        self._enact(self._host.set_busy(now, session, message.busy))

    def _paged_out(self, peer: Peer, message: PagedOut, now: float) -> None:
        session = _own(peer)
        if message.page_ins in (None, peer.page_ins):  # else it will be in again
            self._enact(self._host.paged_out(now, session, message.bytes))

    def _rests(self, peer: Peer, message: Rests, now: float) -> None:
        session = _own(peer)
        rules.check_bytes(message.bytes)
        resting = Resting(self._places[session], message.bytes)
        claim = self._governor.quotas.allowed(session)
        self._close(session, now)
        self._governor.quotas.rests(session, claim)
        self._caretaker.rests(session, resting)

    def _end_rest(self, peer: Peer) -> None:
        """Of the session that rests on this connection, if there is one."""
        if (session := self._caretaker.resting_of(peer)) is not None:
            self._sequence += 1
            self._caretaker.wake(session)
            self._governor.quotas.forget(session)
            self._audience.look_around()

    def _stays_in(self, peer: Peer, message: StaysIn, now: float) -> None:
        session = _own(peer)
        reason = translation.printable(message.reason)
        log.warning("process %d is not paged out: %s", peer.pid, reason)
        self._enact(self._host.page_out_failed(now, session, reason))

    def _change(self, peer: Peer, message: Change, now: float) -> None:
        session = message.session if message.session is not None else _own(peer)
        self._check_values(peer, session, message)
        decision = self._host.change(
            now, session, weight=message.weight, priority=message.priority, paused=message.paused
        )
        peer.send(Done())
        self._enact(decision)

    def _recall(self, peer: Peer, message: Recall, now: float) -> None:
        self._check_right(peer, Deed.CHANGE, message.session)
        with self._by_name(peer, message.session):
            decision = self._host.recall(now, message.session)
        peer.send(Done())
        self._enact(decision)

    def _dismiss(self, peer: Peer, message: Dismiss, now: float) -> None:
        self._check_right(peer, Deed.CHANGE, message.session)
        with self._by_name(peer, message.session):
            decision = self._host.dismiss(now, message.session)
        peer.send(Done())
        self._enact(decision)

    @contextlib.contextmanager
    def _by_name(self, peer: Peer, session: str) -> Iterator[None]:
        """The scheduler's refusals begin with the id of the session where people read its name."""
        try:
            yield
        except ValueError as error:
            name = self._audience.namer_for(peer)(session)
            raise InvalidValue(name + str(error).removeprefix(session)) from None

    def _cancel(self, peer: Peer, message: Cancel, now: float) -> None:
        """The session withdraws its request by itself: it may have been handed the turn by now."""
        self._check_right(peer, Deed.CHANGE, message.session)
        picture = self._host.picture(self._places[message.session].device, now)
        turns = {state.id: state.turn for state in picture.sessions if state.state in WAITING}
        if message.session not in turns:
            raise InvalidValue("this notebook does not wait for a turn any more")
        sentence = f"{peer.user} cancelled this cell's wait for the device"
        self._places[message.session].peer.send(Withdraw(turns[message.session], sentence))
        peer.send(Done())

    def _vouch(self, peer: Peer, message: Vouch, now: float) -> None:
        self.tickets.add(message.digest, peer, now)
        peer.send(Done())

    def _set_policy(self, peer: Peer, message: SetPolicy, now: float) -> None:
        self._governor.person(peer).check(Deed.CHOOSE_POLICY)
        devices = self._meant(message.device)
        rules.check_running_lanes(message.running_lanes)
        if message.policy is not None:
            for device in devices:  # of all of them first: who is refused has changed nothing
                self._governor.classes.check_none(device)
        for device in devices:
            if message.policy is not None:
                self._enact(self._host.set_policy(now, device, message.policy))
            if message.running_lanes is not None:
                self._enact(self._host.set_running_lanes(now, device, message.running_lanes))
        peer.send(Done())

    def _class_mode(self, peer: Peer, message: ClassMode, now: float) -> None:
        person = self._governor.person(peer)
        devices = self._meant(message.device)
        if message.on:
            before = {device: self._host.policy(device) for device in devices}
            self._governor.begin_class(person, message, before, self._clock())
            self._follow_policies(dict.fromkeys(devices, CLASS_POLICY), now)
        else:
            self._follow_policies(self._governor.end_class(person, message, devices), now)
        self._govern(now)
        peer.send(Done())

    def _look(self, peer: Peer, message: Look, now: float) -> None:
        self._audience.show(peer, self._sequence, now)

    def _watch(self, peer: Peer, message: Watch, now: float) -> None:
        limit = self._settings.max_watchers_per_user
        if self._audience.watchers_beside(peer) >= limit:
            raise LimitExceeded(f"{limit} watchers are the limit of each user: end one first")
        self._audience.watch(peer, message.interval_seconds)
        self._audience.show_all(self._sequence, now)

    def _account(self, peer: Peer, message: Account, now: float) -> None:
        """Answered at a tick, when the database has been read."""
        rules.check_span(message)
        self._reports.check(peer)
        for device in self._devices:
            self._count(device, now)
        self._reports.ask(peer, self._governor.person(peer), message)

    def _shutdown(self, peer: Peer, message: Shutdown, now: float) -> None:
        self._governor.person(peer).check(Deed.END_BROKER)
        peer.send(Done())
        self.is_stopping = True

    # --- rules -------------------------------------------------------------------------------

    def _devices_for(self, peer: Peer, message: Open, now: float) -> list[str]:
        """The one that the message names, or else the best of those that will do; or several.

        Who opens again keeps its place.
        """
        place = self._places.get(message.id)
        if message.device == "auto" and place and len(place.devices) == message.devices:
            return [*place.devices]
        will_do = self._among(message.among if message.device == "auto" else [message.device])
        if message.devices > len(will_do):
            there = ", ".join(will_do)
            raise UnknownDevice(
                f"{message.devices} devices at once are more than this notebook may use here:"
                f" {there}"
            )
        for device in will_do:
            self._count_foreign(device, now, peer)
        return self._host.place(will_do, translation.demand(message.demand), message.devices)

    def _among(self, devices: Sequence[str]) -> list[str]:
        """Those that are named; if none is, the GPUs, and the host where there are none."""
        if devices:
            return list(dict.fromkeys(self._named(device) for device in devices))
        return [device for device in self._devices if device != "host"] or list(self._devices)

    def _meant(self, device: str | None) -> list[str]:
        """One, or all where none is named."""
        return [self._named(device)] if device else list(self._devices)

    def _named(self, name: str) -> str:
        """The name of the device with this name or UUID. Raises UnknownDevice."""
        for device in self._devices.values():
            if name and name in (device.name, device.uuid):
                return device.name
        there = ", ".join(self._devices)
        raise UnknownDevice(f"there is no device {name!r} here; there is {there}")

    def _check_open(self, peer: Peer, message: Open, claim: Claim, now: float) -> None:
        if peer.session not in (None, message.id):
            raise ProtocolError("this connection has a session already; one connection carries one")
        place = self._places.get(message.id)
        known = self._place_of(message.id)
        if known is not None and known.peer.user != peer.user:
            raise NotPermitted(f"the session {message.id} belongs to somebody else")
        if place is None:
            self._check_room(peer, message.id)
        if place is not None and place.devices != claim.devices:
            there = ", ".join(place.devices)
            raise InvalidValue(f"the session {message.id} is open on the device {there}")
        rules.check_values(message.weight, message.priority)
        if message.priority > 0:
            self._governor.person(peer).check(Deed.RAISE_PRIORITY)
        if not (message.holding and self._recovering):  # it has its turn since before us
            self._governor.check_newcomer(message.id, claim, self._capacity(claim.devices))

    def _check_room(self, peer: Peer, session: str) -> None:
        """For one more beside all that are open or rest, but those whose place it takes."""
        resting = [
            place
            for name, place in self._caretaker.places()
            if name != session and place.peer is not peer
        ]
        others = [*self._places.values(), *resting]
        own = sum(place.peer.user == peer.user for place in others)
        for count, limit, whose in (
            (len(others), self._settings.max_sessions, "this broker"),
            (own, self._settings.max_sessions_per_user, f"each user; {peer.user} has them"),
        ):
            if count >= limit:
                raise LimitExceeded(f"{limit} sessions are the limit of {whose}: close one first")

    def _check_values(self, peer: Peer, session: str, message: Change) -> None:
        rules.check_values(message.weight, message.priority)
        if message.priority is not None or message.paused is not None:
            self._check_right(peer, Deed.CHANGE, session)
        if message.priority is not None and message.priority > 0:
            self._check_right(peer, Deed.RAISE_PRIORITY, session)
        self._check_right(peer, Deed.SET_WEIGHT, session)

    def _check_right(self, peer: Peer, deed: Deed, session: str) -> None:
        place = self._places.get(session)
        if place is None:
            raise UnknownSession(f"no session has the id {session}")
        self._governor.person(peer).check(deed, Object(place.peer.user, place.group))

    def _place_of(self, session: str) -> Place | None:
        """Also of who rests."""
        return self._places.get(session) or self._caretaker.place(session)

    # --- parts -------------------------------------------------------------------------------

    def _settle(self, peer: Peer, session: str, place: Place) -> None:
        """Note where the session is; an older connection of the same session loses it.

        What was said on that one is said no more, so a turn that goes on keeps its memory.
        """
        former = self._places.get(session)
        if former is not None:
            self._turns.leave_lane_to(former.peer, session)
            former.peer.session = None
        self._places[session] = place
        self._audience.look_around()
        peer.session = session

    def _close(self, session: str, now: float) -> None:
        for device in self._places[session].devices:
            self._count(device, now, session)
        place = self._places.pop(session)
        self._audience.look_around()
        place.peer.session = None
        self._refused.discard(session)
        self._fitted.discard(session)
        self._outgrown.discard(session)
        self._turns.forget(session)
        self._governor.quotas.forget(session)
        self._enact(self._host.close(now, session))

    def take_chunks(self, peer: Peer, batch: chunks.Batch) -> None:
        """What a session has made for its lane."""
        self._turns.take_chunks(peer, batch)

    def _enact(self, decision: _core.Decision) -> None:
        """Send what was decided. Every event comes through here, so here the picture is old."""
        self._sequence += 1
        if decision:
            for session in decision.page_ins:  # before its grant
                self._places[session].peer.page_ins += 1
                self._places[session].peer.send(PageIn())
            for grant in decision.grants:
                self._turns.grant(grant)
                self.accounts.granted(grant.session)
            for wish in decision.yields:
                peer = self._places[wish.session].peer
                peer.send_soon(Yield(wish.turn, self._turns.successor(wish.successor)))
            for session in decision.page_outs:
                self._places[session].peer.send(PageOut())
        self._turns.tell_holders()

    # --- accounts ----------------------------------------------------------------------------

    def _follow_rules(self) -> None:
        rules = self._governor.rules
        self.accounts.follow_rules(rules.accounting.retention_days, rules.time_zone)
        for place in self._places.values():
            self._reconsider(place)

    def follow_identity(self, peer: Peer) -> None:
        """It stands for somebody else by now, or is in other groups."""
        self._sequence += 1
        self._audience.look_around()
        if peer.session in self._places:
            self._reconsider(self._places[peer.session])

    def _reconsider(self, place: Place) -> None:
        """Who belongs elsewhere by now comes back, as after any lost connection, and leaves others
        with memory that it does not map."""
        if (place.group, place.domain) != self._belonging(place.peer):
            self._turns.leave_domain(place.domain)
            self._renew_keys(place.domain)  # before whoever leaves learns of it
            place.peer.close()

    def _renew_keys(self, domain: str) -> None:
        """Whoever leaves a domain may have letters for the others, with turns in memory that it
        maps. None of them counts once they have heard this, and they hear it before a letter."""
        for session, place in self._places.items():
            if place.domain == domain and place.mailbox:
                self._places[session] = place._replace(key="")
                place.peer.send(RenewKey())

    def _count(self, device: str, now: float, only: str | None = None) -> None:
        """What all its sessions have used by now, or one."""
        seen = {}
        if self._host.sessions(device):
            picture = self._host.picture(device, now)
            seen = translation.seen(device, picture, self._places, only)
        self.accounts.follow(now, seen)  # also what was used by sessions that have gone

    # --- the idle and the overdue ------------------------------------------------------------

    def _take_care(self, now: float) -> None:
        pictures = [self._host.picture(device, now) for device in self._devices]
        states = [state for picture in pictures for state in picture.sessions]
        for due in list(self._caretaker.follow(now, states, self._governor.rules)):
            self._take_step(due, now)

    def _take_step(self, due: Due, now: float) -> None:
        self._sequence += 1
        place = self._places.get(due.session)
        known = self._place_of(due.session)
        if due.sentence and known is not None:
            known.peer.send(Notice(due.sentence))
        if place is None:
            return  # what is left to do to who rests, the Jupyter server does
        if due.step.name == "page_out":
            with contextlib.suppress(ValueError):  # it is out, or cannot be
                self._enact(self._host.dismiss(now, due.session))
        elif (asks := STEPS.get(due.step.name)) is not None:
            place.peer.send(asks())

    # --- the admin's rules -------------------------------------------------------------------

    def _govern(self, now: float) -> None:
        """Hold back whom the rules hold back now, and weigh the others, where that has changed."""
        self._next_govern = now + GOVERN_SECONDS
        if not (self._governor.has_rules or self._orders):
            return
        unix = self._clock()
        self._follow_policies(self._governor.classes.expire(self._governor.rules, unix), now)
        if (plans := self._governor.plans(unix)) != self._plans:
            self._plans = plans
            self._sequence += 1
        standings = [
            standing
            for device in self._devices
            for standing in translation.standings(
                device, self._host.picture(device, now), self._places
            )
        ]
        for device, orders in self._governor.orders(standings, unix).items():
            self._give(device, orders, now)

    def _give(self, device: str, orders: Orders, now: float) -> None:
        """What was given once holds until something else is."""
        before = self._orders.get(device)
        self._orders[device] = orders
        if before is None or (before.groups, before.users) != (orders.groups, orders.users):
            self._enact(self._host.set_shares(now, device, orders.groups, orders.users))
        if before is None or before.held_back != orders.held_back:
            self._enact(self._host.hold_back(now, device, orders.held_back))

    def _forget_orders(self, session: str, devices: Sequence[str]) -> None:
        """It opens anew, and what was given of it before its scheduler knows no more."""
        for device in devices:
            if (given := self._orders.get(device)) is not None:
                others = {one: why for one, why in given.held_back.items() if one != session}
                self._orders[device] = given._replace(held_back=others)

    def _follow_policies(self, policies: Mapping[str, str], now: float) -> None:
        for device, policy in policies.items():
            self._enact(self._host.set_policy(now, device, policy))

    # --- memory of others --------------------------------------------------------------------

    def _count_foreign(self, device: str, now: float, newcomer: Peer | None = None) -> None:
        """Now and then; not after a crash, before the sessions that were there had time to come."""
        if self._recovering or not self._foreign.is_due(device, now):
            return
        peers = [place.peer for place in self._places.values() if device in place.devices]
        ours = {peer.pid for peer in (*peers, newcomer) if peer is not None}
        size = self._foreign.ask(device, ours, self._host.picture(device, now), now)
        if size is not None and size != self._host.foreign(device):
            self._enact(self._host.set_foreign(now, device, size))

    def _conclude(self, now: float) -> None:
        """Every event ends here: who has turns by now is written down."""
        for device, history in self._histories.items():
            history.follow(
                now,
                {
                    session: Holder(self._places[session].peer.user, lane)
                    for session, lane in self._turns.holders(device)
                },
            )

    def _tell_waiters(self, now: float) -> None:
        for device in self._devices:
            if self._host.sessions(device):
                self._audience.tell_waiters(device, self._host.picture(device, now))


_HANDLERS: dict[type[Message], Callable[[Service, Peer, Any, float], None]] = {
    Hello: Service._hello,
    Open: Service._open,
    Close: Service._close_own,
    NewKey: Service._new_key,
    Request: Service._request,
    Finish: Service._finish,
    Report: Service._report,
    Keep: Service._keep,
    Busy: Service._busy,
    PagedOut: Service._paged_out,
    Rests: Service._rests,
    StaysIn: Service._stays_in,
    Change: Service._change,
    Recall: Service._recall,
    Dismiss: Service._dismiss,
    Cancel: Service._cancel,
    SetPolicy: Service._set_policy,
    ClassMode: Service._class_mode,
    Look: Service._look,
    Vouch: Service._vouch,
    Watch: Service._watch,
    Account: Service._account,
    Shutdown: Service._shutdown,
}


def _own(peer: Peer) -> str:
    if peer.session is None:
        raise UnknownSession("this connection has no session: open one first")
    return peer.session
