"""Admission: how a session opens and closes, rests, or has to come back."""

from __future__ import annotations

from msgspec.structs import replace

from .. import _core
from ..errors import DoesNotFit, InvalidValue, NotPermitted, OverQuota, ProtocolError
from ..wire.messages import Close, Done, NewKey, Notice, Open, Opened, RenewKey, Rests, Yield
from . import validation
from .access.identity import Identity
from .access.permissions import Permission
from .accounting.meter import Meter
from .admin.enforcement import Enforcement
from .demands import Demands, too_large
from .peer import Peer
from .sessions import SessionRecord
from .snapshot import views
from .state import BrokerState


class Admission:
    """Opens and closes sessions: `sessions` has the records, and `grants` the turns. Owns only
    which users the trusted groups had by the rules before."""

    def __init__(
        self,
        state: BrokerState,
        demands: Demands,
        meter: Meter,
        enforcement: Enforcement,
    ) -> None:
        self._state = state
        self._demands = demands
        self._meter = meter
        self._enforcement = enforcement
        self._trusted = state.rules.rules.trusted_users

    # --- a session opens -----------------------------------------------------------------------

    def open(self, peer: Peer, said: Open, now: float) -> None:
        validation.check_open(said)
        record = self._candidate(peer, said, self._state.placement.choose(peer, said, now))
        message = self._borne_out(record, said, now)
        self._check(record, message)
        message = self._state.changes.applied(message, record.user)
        self._state.placement.count_unmanaged(record.devices, now, peer)
        decision, refusal = self._admit(record, message, now)
        self._settle(record)
        self._meter.count(record.devices, now, record.id)
        self._welcome(record)
        if held_on := self._state.changes.is_back(record, said):
            peer.send(Notice(held_on))
        self._demands.answer(record, message.demand, refusal)
        if message.holding:
            self._state.grants.adopt(record, message.turn)
        elif said.holding:
            peer.send_soon(Yield(said.turn))  # it has no turn here, and has to request one
        self._state.grants.enact(decision)
        self._enforcement.forget(record)
        self._enforcement.follow(now)
        if message.waiting:  # only after the rules were applied: they may throttle the session
            self._state.grants.enact(self._state.host.request(now, record.id, message.turn))

    def _candidate(self, peer: Peer, message: Open, devices: list[str]) -> SessionRecord:
        group, domain = self._belonging(peer)
        return SessionRecord(
            id=message.id,
            peer=peer,
            user=peer.user,
            group=group,
            domain=domain,
            devices=tuple(devices),
            name=views.printable(message.name),
            handoff_slot=message.handoff_slot,
            key=message.key,
            loop_iterations=message.loop_iterations,
            remaining_iterations=message.remaining_iterations,
            has_fitted=bool(message.turn and message.iterations),
        )

    def _borne_out(self, record: SessionRecord, message: Open, now: float) -> Open:
        """Return the message, with only that part of the session's past that this broker has seen,
        or that is in the recovery journal of the previous broker."""
        if (former := self._state.sessions.get(record.id)) is not None:
            self._meter.count(former.devices, now, former.id)
        has_turn = message.holding and self._state.grants.bears_out(record.id, message.turn, now)
        had_turn = has_turn and self._state.grants.is_of_before(record.id)
        past = self._meter.past(record, message, now, had_turn)
        # A session that brings its turn computes in memory of its own, outside of any ledger.
        shares = message.shares and not has_turn and self._state.grants.may_share(record)
        return replace(message, holding=has_turn, shares=shares, **past._asdict())

    def _check(self, record: SessionRecord, message: Open) -> None:
        if record.peer.session not in (None, record.id):
            raise ProtocolError("this connection has a session already; one connection carries one")
        known, former = self._state.sessions.known(record.id), self._state.sessions.get(record.id)
        if known is not None and known.peer.user != record.peer.user:
            raise NotPermitted(f"the session {record.id} belongs to another user")
        if former is None:
            self._state.sessions.check_room(record.peer, record.id)
        elif former.devices != record.devices:
            there = ", ".join(former.devices)
            raise InvalidValue(f"the session {record.id} is open on the device {there}")
        validation.check_values(message.weight, message.priority)
        if message.priority > 0:
            self._state.rules.person(record.peer).check(Permission.RAISE_PRIORITY)
        if not (
            message.holding and self._state.host.recovering
        ):  # it has its turn from the previous broker
            self._state.rules.check_newcomer(record, message.demand)

    def _admit(
        self, record: SessionRecord, message: Open, now: float
    ) -> tuple[_core.Decision, DoesNotFit | None]:
        """Admit the session. A session that comes back is admitted even if its demand does not fit
        any more, since it may have a turn. Then no session runs beside it, and it gets the refusal
        that a Report would get."""
        try:
            if message.holding:
                self._state.rules.check_memory(record, message.demand)
            return self._register(record, message, now), None
        except OverQuota as error:
            refusal: DoesNotFit = error
        except OverflowError as error:
            if not message.turn:
                raise
            refusal = too_large(*error.args)
        demand = self._state.placement.whole_device(record.devices, message.demand)
        return self._register(record, replace(message, demand=demand), now), refusal

    def _register(self, record: SessionRecord, message: Open, now: float) -> _core.Decision:
        return self._state.host.open(now, record.id, record.devices, views.spec(record, message))

    def _settle(self, record: SessionRecord) -> None:
        """Make this connection the one of the session; an older connection loses the session.

        Messages of that connection do not count any more, so a turn that goes on keeps its memory.
        """
        self._state.sessions.end_rest(record.id)
        self.end_rest(record.peer)  # another session may rest there: one connection carries one
        if (former := self._state.sessions.get(record.id)) is not None:
            self._state.grants.leave_lane_to(former)
            former.peer.session = None
            record.follows(former)
        self._state.sessions.add(record)
        self._state.grants.is_back(record.id)

    def _welcome(self, record: SessionRecord) -> None:
        device = self._state.placement.device(record.device)
        record.peer.page_ins, record.peer.room = 0, -1  # it begins with the whole device
        if record.gang:
            uuids = [self._state.placement.device(name).uuid for name in record.gang]
            capacity, gang = self._state.placement.capacity(record.gang), list(record.gang)
            record.peer.send(Opened(record.id, device.name, capacity, 0, device.uuid, gang, uuids))
            return
        opened = Opened(
            record.id, device.name, device.capacity_bytes, device.chunk_bytes, device.uuid
        )
        if device.chunk_bytes:
            record.peer.open_channel(opened)
        else:
            record.peer.send(opened)

    def renew_key(self, peer: Peer, message: NewKey, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_key(message.key)
        record.key = message.key

    # --- a session closes or rests -------------------------------------------------------------

    def close(self, peer: Peer, message: Close, now: float) -> None:
        for session in self._state.sessions.carried_by(peer):
            self._state.changes.has_left(session)
        self.end_rest(peer)
        if peer.session is not None:
            record = self._state.sessions.of(peer)
            self._remove(record, now)
            self._meter.closed(record)
        peer.send(Done())

    def lose(self, peer: Peer, now: float) -> None:
        """Remove the session of a connection that has ended: its place is free at once."""
        self.end_rest(peer)
        if peer.session is not None:
            record = self._state.sessions.of(peer)
            self._state.changes.is_away(record.id)
            self._state.grants.lost(record, now)
            try:
                self._state.grants.leave_lane_to(record)
            finally:  # if its memory cannot be left, other sessions must still not wait for it
                self._remove(record, now)

    def rest(self, peer: Peer, message: Rests, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_bytes(message.bytes)
        self._remove(record, now)
        self._state.sessions.rest(record, message.bytes)

    def end_rest(self, peer: Peer) -> None:
        """Forget the session that rests on this connection, if there is one."""
        if (record := self._state.sessions.resting_on(peer)) is not None:
            self._state.sessions.note_change()
            self._state.sessions.end_rest(record.id)
            self._state.changes.is_away(record.id)

    def _remove(self, record: SessionRecord, now: float) -> None:
        self._meter.count(record.devices, now, record.id)
        self._state.sessions.remove(record)
        self._state.grants.forget(record)
        self._state.rules.quotas.forget(record.id)
        self._state.grants.enact(self._state.host.close(now, record.id))

    # --- trust domains -------------------------------------------------------------------------

    def follow_rules(self) -> None:
        """Follow the rules, which may have changed the group of any user, connected or not."""
        before, self._trusted = self._trusted, self._state.rules.rules.trusted_users
        for domain, users in before.items():
            if self._trusted.get(domain) != users:
                self._renew(domain)
        for record in self._state.sessions:
            self._reconsider(record)

    def follow_identity(self, peer: Peer, before: Identity) -> None:
        """Follow a change of the user that a connection stands for, or of the user's groups."""
        _, domain = self._belonging(before)
        if domain != self._belonging(peer)[1]:
            self._renew(domain)
        if peer.session is not None:
            self._reconsider(self._state.sessions.of(peer))

    def _belonging(self, one: Peer | Identity) -> tuple[str, str]:
        """Return the group and the trust domain of the user."""
        group = self._state.rules.group_of(one)
        return group, self._state.rules.rules.domain_of(one.user, group)

    def _reconsider(self, record: SessionRecord) -> None:
        """Close the connection of a session whose group or trust domain has changed, so that it
        comes back."""
        if (record.group, record.domain) != self._belonging(record.peer):
            record.peer.close()

    def _renew(self, domain: str) -> None:
        """Let the domain continue with memory that no process maps yet: a user that has left it may
        have a process that maps the present memory, with a session or without. This happens before
        a session that leaves learns of it."""
        self._state.grants.leave_domain(domain)
        self._renew_keys(domain)

    def _renew_keys(self, domain: str) -> None:
        """Invalidate the direct handoffs that a leaving session may hold for the others of the
        domain, with turns in memory that it maps. The others read this message before they accept a
        handoff."""
        for record in self._state.sessions:
            if record.domain == domain and record.handoff_slot:
                record.key = ""
                record.peer.send(RenewKey())
