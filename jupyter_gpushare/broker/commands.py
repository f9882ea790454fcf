"""Commands of users: changes of one notebook, the policy of a device, a class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _core
from ..errors import InvalidValue, UnknownSession
from ..wire.messages import Cancel, Change, ClassMode, Done, Evict, Preempt, SetPolicy, Withdraw
from ..wire.snapshot import WAITING
from . import validation
from .access.permissions import Permission, Resource
from .admin.enforcement import Enforcement
from .peer import Peer
from .sessions import SessionRecord
from .snapshot.visibility import Visibility
from .state import BrokerState


class Commands:
    """Checks that the user has the permission, and tells the scheduler, and the next
    broker. Owns no state."""

    def __init__(
        self, state: BrokerState, enforcement: Enforcement, visibility: Visibility
    ) -> None:
        self._state = state
        self._enforcement = enforcement
        self._visibility = visibility

    def change(self, peer: Peer, message: Change, now: float) -> None:
        session = self._state.sessions.of(peer).id if message.session is None else message.session
        self._check_values(peer, session, message)
        decision = self._state.host.change(
            now, session, weight=message.weight, priority=message.priority, paused=message.paused
        )
        is_own = peer.session == session
        self._state.changes.note_session(self._state.sessions[session], message, is_own)
        self._done(peer, decision)

    def yield_turn(self, peer: Peer, message: Preempt, now: float) -> None:
        self._permitted(peer, Permission.CHANGE, message.session)
        with self._by_name(peer, message.session):
            decision = self._state.host.preempt(now, message.session)
        self._done(peer, decision)

    def page_out(self, peer: Peer, message: Evict, now: float) -> None:
        self._permitted(peer, Permission.CHANGE, message.session)
        with self._by_name(peer, message.session):
            decision = self._state.host.evict(now, message.session)
        self._done(peer, decision)

    def cancel(self, peer: Peer, message: Cancel, now: float) -> None:
        """Ask the session to withdraw its request itself: it may have got the turn by a direct
        handoff."""
        record = self._permitted(peer, Permission.CHANGE, message.session)
        device_snapshot = self._state.host.snapshot(record.device, now)
        turns = {
            state.id: state.turn for state in device_snapshot.sessions if state.state in WAITING
        }
        if record.id not in turns:
            raise InvalidValue("this notebook does not wait for a turn any more")
        sentence = f"{peer.user} cancelled this cell's wait for the device"
        record.peer.send(Withdraw(turns[record.id], sentence))
        peer.send(Done())

    def set_policy(self, peer: Peer, message: SetPolicy, now: float) -> None:
        self._state.rules.person(peer).check(Permission.CHOOSE_POLICY)
        devices = self._state.placement.meant(message.device)
        validation.check_running_lanes(message.running_lanes)
        if message.policy is not None:
            validation.check_policy(message.policy)
            for device in devices:  # before any change: a command that is refused changes nothing
                self._state.rules.classes.check_none(device)
        for device in devices:
            if message.policy is not None:
                self._state.grants.enact(self._state.host.set_policy(now, device, message.policy))
            if message.running_lanes is not None:
                lanes = self._state.host.set_running_lanes(now, device, message.running_lanes)
                self._state.grants.enact(lanes)
            policy = None if message.policy is None else self._state.host.policy(device)
            self._state.changes.note_policy(device, policy, message.running_lanes)
        peer.send(Done())

    def set_class(self, peer: Peer, message: ClassMode, now: float) -> None:
        self._enforcement.set_class(peer, message, self._state.placement.meant(message.device), now)
        peer.send(Done())

    @contextlib.contextmanager
    def _by_name(self, peer: Peer, session: str) -> Iterator[None]:
        """In the scheduler's refusals, which begin with the id of the session, put the session's
        name as this user may see it."""
        try:
            yield
        except ValueError as error:
            name = self._visibility.namer_for(peer)(session)
            raise InvalidValue(name + str(error).removeprefix(session)) from None

    def _done(self, peer: Peer, decision: _core.Decision) -> None:
        peer.send(Done())
        self._state.grants.enact(decision)

    def _check_values(self, peer: Peer, session: str, message: Change) -> None:
        validation.check_values(message.weight, message.priority)
        if message.priority is not None or message.paused is not None:
            self._permitted(peer, Permission.CHANGE, session)
        if message.priority is not None and message.priority > 0:
            self._permitted(peer, Permission.RAISE_PRIORITY, session)
        self._permitted(peer, Permission.SET_WEIGHT, session)

    def _permitted(self, peer: Peer, permission: Permission, session: str) -> SessionRecord:
        """Return the session if the user has the permission. Raises UnknownSession or
        NotPermitted."""
        record = self._state.sessions.get(session)
        if record is None:
            raise UnknownSession(f"no session has the id {session}")
        resource = Resource(record.peer.user, record.group)
        self._state.rules.person(peer).check(permission, resource)
        return record
