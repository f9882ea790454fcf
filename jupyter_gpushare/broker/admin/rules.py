"""What the admin's rules ask of the schedulers now; nothing is done here."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import InvalidValue, OverQuota
from ...format import size
from ...wire.messages import (
    ClassMode,
    Demand,
)
from ...wire.snapshot import (
    ACTIVE,
    ClassView,
    GroupView,
    ReservationView,
)
from ..access.permissions import Deed, Object, Person
from ..peer import Peer
from . import quotas, reservations
from .quotas import Claim, Quotas, Used
from .reservations import Classes
from .rulebook import Rulebook, RulebookFile
from .standing import Standing

ALL_SEEING = Person("", is_admin=True)
NO_RULES = Rulebook()
log = logging.getLogger("jupyter_gpushare.broker")


class Orders(NamedTuple):
    """For one device: whom to hold back, with why, and the weights of groups and users."""

    held_back: dict[str, str]
    groups: dict[str, float]
    users: dict[str, float]


class Plans(NamedTuple):
    """Who has a device for themselves, now or soon; all may see it."""

    classes: list[ClassView]
    reservations: list[ReservationView]


class Governor:
    """Times are Unix time."""

    def __init__(self, file: RulebookFile, used: Used) -> None:
        self._file = file
        self._used = used
        self.quotas = Quotas()
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
        """Without them there is nothing to order."""
        return self.rules != NO_RULES

    def follow_file(self) -> bool:
        """Whether there is something new in it."""
        is_new = self._file.follow()
        if is_new:
            log.warning("%s", self.error or "the rules were read anew")
        return is_new

    def person(self, peer: Peer) -> Person:
        return Person.of(peer, self.rules)

    def group_of(self, peer: Peer) -> str:
        return self.rules.group_of(peer.user, peer.groups)

    def groups(self) -> list[GroupView]:
        return [
            GroupView(name, group.weight, list(group.teachers))
            for name, group in self.rules.groups.items()
        ]

    # --- on a device ---------------------------------------------------------------------------

    def plans(self, unix: float) -> Plans:
        return Plans(self.classes.shown(), reservations.shown(self.rules, unix))

    def orders(self, standings: Sequence[Standing], unix: float) -> dict[str, Orders]:
        """For each device on which there are sessions; `standings` are those of all of them."""
        held = self.quotas.held_back(self.rules, standings, self._used)
        by_device: defaultdict[str, list[Standing]] = defaultdict(list)
        for standing in standings:
            by_device[standing.device].append(standing)
        return {
            device: self._orders(device, here, held, unix) for device, here in by_device.items()
        }

    def _orders(
        self, device: str, here: Sequence[Standing], held: Mapping[str, str], unix: float
    ) -> Orders:
        active = {one.group for one in here if one.state in ACTIVE}
        sentences = {one.session: held[one.session] for one in here if one.session in held}
        return Orders(
            sentences | self._others(device, here, unix),
            reservations.group_weights(self.rules, device, active, unix),
            self.rules.user_weights,
        )

    def _others(self, device: str, here: Sequence[Standing], unix: float) -> dict[str, str]:
        """Those of other groups, where one group has the device."""
        zone = self.rules.time_zone
        if (one := self.classes.on(device)) is not None:
            group, sentence = one.group, reservations.why_class(one, zone)
        elif (reserved := reservations.owner(self.rules, device, unix)) is not None:
            group, sentence = reserved.group, reservations.why_reserved(reserved, zone, unix)
        else:
            return {}
        return {one.session: sentence for one in here if not self._is_of(one, group)}

    def _is_of(self, standing: Standing, group: str) -> bool:
        """In the group, or teaching it."""
        return standing.group == group or group in self.rules.taught_by(standing.user)

    # --- classes -------------------------------------------------------------------------------

    def begin_class(
        self, person: Person, message: ClassMode, policies: Mapping[str, str], unix: float
    ) -> None:
        self._check_class(person, message.group)
        self.classes.begin(self.rules, message, policies, unix)

    def end_class(
        self, person: Person, message: ClassMode, devices: Sequence[str]
    ) -> dict[str, str]:
        """The policies that come back, by device. Raises InvalidValue where there is no class."""
        self._check_class(person, message.group)
        if not (ended := self.classes.end(message.group, devices)):
            raise InvalidValue(f"no class of {message.group} is on")
        return ended

    def _check_class(self, person: Person, group: str) -> None:
        if group not in self.rules.groups:
            there = ", ".join(self.rules.groups) or "none: the broker has no rules"
            raise InvalidValue(f"there is no group {group!r}; there is {there}")
        person.check(Deed.HOLD_CLASS, Object(group=group))

    # --- memory --------------------------------------------------------------------------------

    def check_newcomer(self, session: str, claim: Claim, capacity_bytes: int) -> None:
        """Raises OverQuota."""
        self._check_part(session, claim, capacity_bytes)
        self.quotas.check_newcomer(self.rules, session, claim)

    def check_memory(self, session: str, claim: Claim, capacity_bytes: int) -> None:
        """Raises OverQuota where one that has its turn already would have too much."""
        self._check_part(session, claim, capacity_bytes)
        self.quotas.check_memory(self.rules, session, claim)

    def check_demand(self, session: str, demand: Demand, capacity_bytes: int) -> None:
        """Raises OverQuota where it is more than the rules, or equal parts in a class, allow."""
        allowed = self.quotas.allowed(session)
        self._check_part(session, allowed.with_demand(demand), capacity_bytes)
        self.quotas.check_demand(self.rules, session, demand)

    def _check_part(self, session: str, claim: Claim, capacity_bytes: int) -> None:
        for device in claim.devices:
            self._check_part_of(device, session, claim, capacity_bytes)

    def _check_part_of(self, device: str, session: str, claim: Claim, capacity_bytes: int) -> None:
        one = self.classes.on(device)
        if one is None or one.group != claim.group or one.group in self.rules.taught_by(claim.user):
            return
        students = self._students(one.group, device)
        here = claim._replace(devices=(device,))
        claims = [*self.quotas.beside(session, claim.user, device), here]
        wanted = quotas.persistent_bytes(claims) + quotas.lane_bytes(claims)
        if wanted > capacity_bytes // students:
            raise OverQuota(
                f"{claim.user} would have {size(wanted)} of the device; each of the {students} of"
                f" the class of {one.group} has {size(capacity_bytes // students)} while it lasts"
                f"{quotas.whom_to_ask(self.rules)}"
            )

    def _students(self, group: str, device: str) -> int:
        """Those of the file, or those who are there, if they are more: newcomers take nothing."""
        named, teachers = self.rules.groups[group].members, self.rules.groups[group].teachers
        there = self.quotas.users(group, device)
        return max(1, *(len({*users} - {*teachers}) for users in (named, there)))
