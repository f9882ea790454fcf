"""Carries out the directives of the rule engine and the steps of idle culling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from ...wire.messages import ClassMode, GiveBack, Notice, Rest
from ..peer import Peer
from ..sessions import SessionRecord
from ..state import BrokerState
from .idle import Due
from .reservations import CLASS_POLICY
from .rules import Directives

RULES_SECONDS = 0.25  # between two evaluations of the rules
STEPS: dict[str, type[GiveBack] | type[Rest]] = {"caches": GiveBack, "release": Rest}


class Enforcement:
    """Owns the directives that are in force, by device, and the plans that all may see. `clock`
    returns Unix time, which rules of hours and days follow."""

    def __init__(self, state: BrokerState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._directives: dict[str, Directives] = {}
        self.plans = state.rules.plans(clock())
        self._due = 0.0

    # --- the admin's rules -------------------------------------------------------------------

    def follow_if_due(self, now: float) -> None:
        if now >= self._due:
            self.follow(now)

    def hasten(self, now: float) -> None:
        """Make `follow_if_due` due now, since the rules have changed."""
        self._due = now

    def follow(self, now: float) -> None:
        """Apply changes in which sessions the rules throttle, and in the weights of groups and
        users."""
        self._due = now + RULES_SECONDS
        classes = self._state.rules.classes
        in_force = self._directives or any(self.plans) or classes.all
        if not (self._state.rules.has_rules or in_force):
            return
        unix = self._clock()
        if expired := classes.expire(self._state.rules.rules, unix):
            self._set_policies(expired, now)
            self._state.changes.note_classes(classes.all)
        if (plans := self._state.rules.plans(unix)) != self.plans:
            self.plans = plans
            self._state.sessions.note_change()
        states = {
            device: self._state.host.snapshot(device, now).sessions
            for device in self._state.devices
        }
        for device, directives in self._state.rules.directives(states, unix).items():
            self._give(device, directives, now)

    def forget(self, record: SessionRecord) -> None:
        """Forget that the session was throttled: the scheduler has forgotten it too, since it opens
        again."""
        for device in record.devices:
            if (given := self._directives.get(device)) is not None:
                others = {one: why for one, why in given.throttled.items() if one != record.id}
                self._directives[device] = given._replace(throttled=others)

    def _give(self, device: str, directives: Directives, now: float) -> None:
        """Pass the directives to the scheduler; they hold until others replace them."""
        before = self._directives.get(device)
        self._directives[device] = directives
        groups, users = directives.groups, directives.users
        if before is None or (before.groups, before.users) != (groups, users):
            self._state.grants.enact(self._state.host.set_shares(now, device, groups, users))
        if before is None or before.throttled != directives.throttled:
            self._state.grants.enact(self._state.host.throttle(now, device, directives.throttled))

    # --- the broker before -------------------------------------------------------------------

    def resume(self) -> None:
        """Restore the policies, lanes and classes that devices had under the previous broker. No
        session is open yet."""
        changes, classes, groups = (
            self._state.changes,
            self._state.rules.classes,
            self._state.rules.rules.groups,
        )
        for device in self._state.devices:
            if (policy := changes.policies.get(device)) is not None:
                self._state.host.set_policy(0.0, device, policy)
            if (lanes := changes.running_lanes.get(device)) is not None:
                self._state.host.set_running_lanes(0.0, device, lanes)
            if (one := changes.classes.get(device)) is not None and one.group in groups:
                classes.resume(device, one._replace(policy=self._state.host.policy(device)))
                self._state.host.set_policy(0.0, device, CLASS_POLICY)

    # --- classes -----------------------------------------------------------------------------

    def set_class(self, peer: Peer, message: ClassMode, devices: Sequence[str], now: float) -> None:
        """Begin or end a class. Raises NotPermitted or InvalidValue."""
        person = self._state.rules.person(peer)
        if message.on:
            before = {device: self._state.host.policy(device) for device in devices}
            self._state.rules.begin_class(person, message, before, self._clock())
            self._set_policies(dict.fromkeys(devices, CLASS_POLICY), now)
        else:
            self._set_policies(self._state.rules.end_class(person, message, devices), now)
        self._state.changes.note_classes(self._state.rules.classes.all)
        self.follow(now)

    def _set_policies(self, policies: Mapping[str, str], now: float) -> None:
        for device, policy in policies.items():
            self._state.grants.enact(self._state.host.set_policy(now, device, policy))

    # --- idle and overdue sessions -----------------------------------------------------------

    def escalate(self, now: float) -> None:
        """Take the steps that are due for sessions that are idle or overdue."""
        device_snapshots = [
            self._state.host.snapshot(device, now) for device in self._state.devices
        ]
        states = [
            state for device_snapshot in device_snapshots for state in device_snapshot.sessions
        ]
        for due in list(self._state.idle.follow(now, states, self._state.rules.rules)):
            self._take(due, now)

    def _take(self, due: Due, now: float) -> None:
        self._state.sessions.note_change()
        known, record = (
            self._state.sessions.known(due.session),
            self._state.sessions.get(due.session),
        )
        if due.sentence and known is not None:
            known.peer.send(Notice(due.sentence))
        if record is None:
            return  # the session rests: all later steps are the Jupyter server's
        if due.step.name == "page_out":
            with contextlib.suppress(ValueError):  # it is paged out already, or cannot be
                self._state.grants.enact(self._state.host.evict(now, due.session))
        elif (asks := STEPS.get(due.step.name)) is not None:
            record.peer.send(asks())
