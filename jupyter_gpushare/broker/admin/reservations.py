"""Times in which one group has a device, or a share of it: by the rulebook, or for a class.

Times are Unix time. Only the active classes are stored: reservations follow from the rules and the
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ... import _core
from ...errors import InvalidValue
from ...wire.messages import MAX_WEIGHT, ClassMode
from ...wire.snapshot import ClassView, ReservationView
from .rulebook import Reservation, Rulebook, Zone

LONGEST_CLASS_SECONDS = 86400.0
AHEAD_SECONDS = 86400.0  # a reservation is shown this long before it begins
CLASS_POLICY = "classroom"


class Class(NamedTuple):
    """A class in progress. If `ends` is None, it goes on until a teacher or an admin ends it. Then
    `policy` is restored."""

    group: str
    ends: float | None
    policy: str


def shown(rules: Rulebook, unix: float) -> list[ReservationView]:
    """Return the reservations that are active or begin within a day, by time."""
    views = (_view(reservation, rules.time_zone, unix) for reservation in rules.reservations)
    return sorted(
        (view for view in views if view.begins <= unix + AHEAD_SECONDS),
        key=lambda view: (view.begins, view.group),
    )


def on_now(rules: Rulebook, device: str, unix: float) -> list[Reservation]:
    return [
        reservation
        for reservation in rules.reservations
        if reservation.concerns(device) and reservation.span(unix, rules.time_zone).begins <= unix
    ]


def owner(rules: Rulebook, device: str, unix: float) -> Reservation | None:
    """Return the active reservation of the whole device, or None."""
    return next((one for one in on_now(rules, device, unix) if one.is_exclusive), None)


def group_weights(
    rules: Rulebook, device: str, active: Iterable[str], unix: float
) -> dict[str, float]:
    """Return weights of all groups under which each group with a reservation gets its share beside
    the `active` groups."""
    weights = rules.group_weights
    shares = {one.group: one.share for one in on_now(rules, device, unix) if not one.is_exclusive}
    if not shares.keys() & {*active}:
        return weights
    reserved = sum(share for group, share in shares.items() if group in active)
    others = sum(weights.get(group, 1.0) for group in {*active} - shares.keys())
    if not others:
        return weights | shares
    whole = others / max(1.0 - reserved, 1.0 / MAX_WEIGHT)
    return weights | {group: share * whole for group, share in shares.items()}


class Classes:
    """Owns the active classes, at most one for each device."""

    def __init__(self) -> None:
        self._on: dict[str, Class] = {}

    def on(self, device: str) -> Class | None:
        return self._on.get(device)

    def check_none(self, device: str) -> None:
        """Raise InvalidValue if a class is active: it keeps its policy until it ends."""
        if (one := self.on(device)) is not None:
            raise InvalidValue(f"a class of {one.group} has {device}: end it first")

    @property
    def all(self) -> Mapping[str, Class]:
        """The active classes, by device."""
        return self._on

    def resume(self, device: str, one: Class) -> None:
        """Continue a class that began under the previous broker."""
        self._on[device] = one

    def shown(self) -> list[ClassView]:
        return [ClassView(one.group, device, one.ends) for device, one in self._on.items()]

    def begin(
        self, rules: Rulebook, message: ClassMode, policies: Mapping[str, str], unix: float
    ) -> None:
        """Begin a class on these devices; `policies` are to be restored at its end. Raises
        InvalidValue, and begins on no device, if another group has one of them."""
        if message.seconds is not None and not 0 < message.seconds <= LONGEST_CLASS_SECONDS:
            raise InvalidValue(
                f"a class lasts more than 0 and at most {LONGEST_CLASS_SECONDS:g} seconds,"
                f" not {message.seconds:g}"
            )
        for device in policies:
            self._check_free(rules, message.group, device, unix)
        ends = None if message.seconds is None else unix + message.seconds
        for device, policy in policies.items():
            before = self._on.get(device)
            self._on[device] = Class(message.group, ends, before.policy if before else policy)

    def end(self, group: str, devices: Iterable[str]) -> dict[str, str]:
        """End the class. Returns the devices on which it ended, and the policies to restore."""
        return self._end(
            [name for name in devices if (one := self.on(name)) and one.group == group]
        )

    def expire(self, rules: Rulebook, unix: float) -> dict[str, str]:
        """End classes whose time has passed, whose device another group has reserved, or whose
        group is not in the rules any more."""
        return self._end([device for device in self._on if self._is_over(rules, device, unix)])

    def _end(self, devices: list[str]) -> dict[str, str]:
        return {device: self._on.pop(device).policy for device in devices}

    def _is_over(self, rules: Rulebook, device: str, unix: float) -> bool:
        one, reservation = self._on[device], owner(rules, device, unix)
        is_late = one.ends is not None and unix >= one.ends
        is_reserved = reservation is not None and reservation.group != one.group
        return is_late or is_reserved or one.group not in rules.groups

    def _check_free(self, rules: Rulebook, group: str, device: str, unix: float) -> None:
        has, reservation = self._on.get(device), owner(rules, device, unix)
        if has is not None and has.group != group:
            raise InvalidValue(f"a class of {has.group} has {device} already")
        if reservation is not None and reservation.group != group:
            raise InvalidValue(f"{reservation.group} has reserved {device} now")


# --- reasons --------------------------------------------------------------------------------------


def why_class(one: Class) -> _core.Reason:
    if one.ends is None:
        return _core.Reason("throttled_for_class", who=one.group)
    return _core.Reason("throttled_for_class_until", who=one.group, until=one.ends)


def why_reserved(reservation: Reservation, zone: Zone, unix: float) -> _core.Reason:
    ends = reservation.span(unix, zone).ends
    return _core.Reason("throttled_for_reservation", who=reservation.group, until=ends)


def _view(reservation: Reservation, zone: Zone, unix: float) -> ReservationView:
    begins, ends = reservation.span(unix, zone)
    return ReservationView(
        group=reservation.group,
        device=reservation.device,
        share=reservation.share,
        begins=begins,
        ends=ends,
        is_on=begins <= unix,
    )
