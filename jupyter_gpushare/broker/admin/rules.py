"""The rule engine: derives directives from the rulebook, which Enforcement carries out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ... import _core
from ...errors import InvalidValue
from ...wire.demand import Demand
from ...wire.messages import ClassMode
from ...wire.snapshot import ACTIVE, ClassView, GroupView, ReservationView
from ..access.identity import Identity
from ..access.permissions import Permission, Person, Resource
from ..peer import Peer
from ..sessions import SessionRecord, Sessions
from . import quotas, reservations
from .quotas import QuotaCheck, Used, Why
from .reservations import Classes
from .rulebook import Rulebook
from .rulebook_file import RulebookFile

NO_RULES = Rulebook()
log = logging.getLogger("jupyter_gpushare.broker")


class Directives(NamedTuple):
    """Directives for one device: the sessions to throttle, and why, and the weights of groups and
    users."""

    throttled: dict[str, Why]
    groups: dict[str, float]
    users: dict[str, float]


class Plans(NamedTuple):
    """The groups that have a device for themselves, now or soon; all users may see them."""

    classes: list[ClassView]
    reservations: list[ReservationView]


class RuleEngine:
    """Owns the rules that are in force, the quotas and the classes. Times are Unix time."""

    def __init__(
        self,
        file: RulebookFile,
        used: Used,
        sessions: Sessions,
        capacity: Callable[[Sequence[str]], int],
    ) -> None:
        """`capacity` returns the bytes of the smallest of the named devices."""
        self._file = file
        self._capacity = capacity
        self._used = used
        self._sessions = sessions
        self.quotas = QuotaCheck(sessions)
        self.classes = Classes()

    # --- the rules -----------------------------------------------------------------------------

    @property
    def rules(self) -> Rulebook:
        return self._file.rules

    @property
    def error(self) -> str:
        """Why the file as it is now is not in force, or empty."""
        return self._file.error

    @property
    def has_rules(self) -> bool:
        """Whether there are rules; without them there are no directives."""
        return self.rules != NO_RULES

    def follow_file(self, now: float) -> bool:
        """Read the file again if it has changed. Returns whether there is something new in it."""
        is_new = self._file.follow(now)
        if is_new:
            log.warning("%s", self.error or "the rules were read again")
        return is_new

    def person(self, peer: Peer) -> Person:
        return Person.of(peer, self.rules)

    def group_of(self, one: Peer | Identity) -> str:
        return self.rules.group_of(one.user, one.groups)

    def groups(self) -> list[GroupView]:
        return [
            GroupView(name, group.weight, list(group.teachers))
            for name, group in self.rules.groups.items()
        ]

    # --- on a device ---------------------------------------------------------------------------

    def plans(self, unix: float) -> Plans:
        return Plans(self.classes.shown(), reservations.shown(self.rules, unix))

    def directives(
        self, states: Mapping[str, Sequence[_core.SessionState]], unix: float
    ) -> dict[str, Directives]:
        """Return the directives for each device with sessions; `states` has the sessions of all
        devices."""
        everywhere = [state for here in states.values() for state in here]
        by_quotas = self.quotas.throttled(self.rules, everywhere, self._used, unix)
        throttled = self._above_quotas() | by_quotas
        return {
            device: self._directives(device, here, throttled, unix)
            for device, here in states.items()
            if here
        }

    def _directives(
        self,
        device: str,
        here: Sequence[_core.SessionState],
        throttled: Mapping[str, Why],
        unix: float,
    ) -> Directives:
        active = {self._group(one) for one in here if one.state in ACTIVE}
        reasons = {one.id: throttled[one.id] for one in here if one.id in throttled}
        return Directives(
            reasons | self._others(device, here, unix),
            reservations.group_weights(self.rules, device, active, unix),
            self.rules.user_weights,
        )

    def _others(
        self, device: str, here: Sequence[_core.SessionState], unix: float
    ) -> dict[str, Why]:
        """Return the sessions of other groups, where one group has the device."""
        if (one := self.classes.on(device)) is not None:
            group, reason = one.group, reservations.why_class(one)
        elif (reserved := reservations.owner(self.rules, device, unix)) is not None:
            zone = self.rules.time_zone
            group, reason = reserved.group, reservations.why_reserved(reserved, zone, unix)
        else:
            return {}
        return {state.id: [reason] for state in here if not self._is_of(state, group)}

    def _is_of(self, state: _core.SessionState, group: str) -> bool:
        """Whether the user of a session is in the group, or teaches it."""
        return self._group(state) == group or group in self.rules.taught_by(state.user)

    def _group(self, state: _core.SessionState) -> str:
        return self._sessions[state.id].group

    # --- classes -------------------------------------------------------------------------------

    def begin_class(
        self, person: Person, message: ClassMode, policies: Mapping[str, str], unix: float
    ) -> None:
        self._check_class(person, message.group)
        self.classes.begin(self.rules, message, policies, unix)

    def end_class(
        self, person: Person, message: ClassMode, devices: Sequence[str]
    ) -> dict[str, str]:
        """Return the policies to restore by device. Raises InvalidValue where there is no class."""
        self._check_class(person, message.group)
        if not (ended := self.classes.end(message.group, devices)):
            raise InvalidValue(f"no class of {message.group} is on")
        return ended

    def _check_class(self, person: Person, group: str) -> None:
        if group not in self.rules.groups:
            there = ", ".join(self.rules.groups) or "none: the broker has no rules"
            raise InvalidValue(f"there is no group {group!r}; there is {there}")
        person.check(Permission.HOLD_CLASS, Resource(group=group))

    # --- memory --------------------------------------------------------------------------------

    def check_newcomer(self, record: SessionRecord, demand: Demand) -> None:
        """Raise OverQuota where one more session with this demand would be too much."""
        if why := self._above_part(record, demand):
            raise quotas.refusal(why)
        self.quotas.check_newcomer(self.rules, record, demand)

    def check_memory(self, record: SessionRecord, demand: Demand) -> None:
        """Raise OverQuota if the demand is more than the rules allow, or more than an equal part in
        a class. The session is open, or brings its turn."""
        if why := self.excess(record, demand):
            raise quotas.refusal(why)

    def excess(self, record: SessionRecord, demand: Demand) -> Why:
        """Return why `check_memory` raises, or nothing where the demand is allowed."""
        return self._above_part(record, demand) or self.quotas.excess(self.rules, record, demand)

    def _above_quotas(self) -> dict[str, Why]:
        """Return the sessions that have come to need more memory than they may have. The demand is
        checked again, since other sessions of the user may have left."""
        found = {}
        for record in self._sessions:
            if record.above_quota is not None and (why := self.excess(record, record.above_quota)):
                found[record.id] = [_core.Reason("throttled"), *why]
        return found

    def _above_part(self, record: SessionRecord, demand: Demand) -> Why:
        """Return why the demand is more than the part of a student on one of its devices."""
        parts = (self._above_part_of(device, record, demand) for device in record.devices)
        return next(filter(None, parts), [])

    def _above_part_of(self, device: str, record: SessionRecord, demand: Demand) -> Why:
        one, user = self.classes.on(device), record.user
        if one is None or one.group != record.group or one.group in self.rules.taught_by(user):
            return []
        students = self._students(one.group, device)
        claims = [*self.quotas.beside(record, device), (demand, 1)]
        wanted = quotas.persistent_bytes(claims) + quotas.lane_bytes(claims)
        part = self._capacity(record.devices) // students
        if wanted <= part:
            return []
        reason = _core.Reason(
            "above_class_part",
            who=user,
            bytes=wanted,
            count=students,
            rule=one.group,
            whole=part,
        )
        return [reason, quotas.whom_to_ask(self.rules)]

    def _students(self, group: str, device: str) -> int:
        """Return the number of students in the file, or the number with notebooks here if that is
        larger. So a listed student can open a notebook later without reducing the parts of the
        others."""
        named, teachers = self.rules.groups[group].members, self.rules.groups[group].teachers
        there = self.quotas.users(group, device)
        return max(1, *(len({*users} - {*teachers}) for users in (named, there)))
