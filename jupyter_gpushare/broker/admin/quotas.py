"""Quotas of the rules: memory, notebooks, waiting notebooks, and device seconds of a day.

A newcomer whose demand is above a quota is refused at once. An open session that comes to need more
than its quota is throttled from its next boundary on; the reason names the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ... import _core
from ...errors import OverQuota
from ...reasons import sentence
from ...wire.demand import Demand
from ...wire.snapshot import WAITING
from ..sessions import SessionRecord, Sessions
from .rulebook import Limit, Rulebook

Claim = tuple[Demand, int]  # the demand allowed on each device of a session, and their number
Why: TypeAlias = list[_core.Reason]  # the ordered parts of the reason why a session is throttled


class Used(Protocol):
    """A source of device seconds since midnight."""

    def used_today(self, user: str) -> float: ...
    def used_today_by_group(self, group: str) -> float: ...


class Measure(NamedTuple):
    """How claims add up to the bytes that a rule limits, and the reason that says so."""

    amount: Callable[[Iterable[Claim]], int]
    code: str


def persistent_bytes(claims: Iterable[Claim]) -> int:
    return sum(demand.persistent_bytes * devices for demand, devices in claims)


def lane_bytes(claims: Iterable[Claim]) -> int:
    """Return the largest lane demand, since the sessions of one user or group use a lane in
    turn."""
    return max((demand.ephemeral_bytes for demand, _ in claims), default=0)


MEASURES = {
    "persistent": Measure(persistent_bytes, "above_persistent"),
    "lane": Measure(lane_bytes, "above_lane"),
}


class QuotaCheck:
    """Compares the records of all sessions with the rules. Owns the order in which sessions began
    to wait for the device."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._wanting: dict[str, None] = {}

    def check_newcomer(self, rules: Rulebook, record: SessionRecord, demand: Demand) -> None:
        """Raise OverQuota if one more session with this demand would exceed a quota."""
        if why := self.excess(rules, record, demand):
            raise refusal(why)
        for limit in rules.limits("sessions", record.user, record.group):
            number = len(self._claims_beside(limit, record)) + 1
            if number > limit.amount:
                raise OverQuota(
                    f"{limit.holder} would have {number} notebooks, where the rule {limit.rule}"
                    f" allows {int(limit.amount)}{advice(rules)}"
                )

    def excess(self, rules: Rulebook, record: SessionRecord, demand: Demand) -> Why:
        """Return why the demand exceeds a quota of its user or group; an empty list if it does
        not."""
        claim = (demand, len(record.devices))
        for key, measure in MEASURES.items():
            for limit in rules.limits(key, record.user, record.group):
                amount = measure.amount([*self._claims_beside(limit, record), claim])
                if amount > limit.amount:
                    reason = _core.Reason(
                        measure.code,
                        who=limit.holder,
                        bytes=amount,
                        rule=limit.rule,
                        whole=int(limit.amount),
                    )
                    return [reason, whom_to_ask(rules)]
        return []

    def beside(self, record: SessionRecord, device: str) -> list[Claim]:
        """Return the demands that the user's other sessions may have on that device."""
        return [
            (other.allowed, 1)
            for other in self._others(record)
            if other.user == record.user and device in other.devices
        ]

    def users(self, group: str, device: str) -> set[str]:
        """Return the users of the group that have notebooks on the device."""
        there = (record for record in self._sessions.all_known() if device in record.devices)
        return {record.user for record in there if record.group == group}

    def forget(self, session: str) -> None:
        self._wanting.pop(session, None)

    def throttled(
        self, rules: Rulebook, states: Sequence[_core.SessionState], used: Used, unix: float
    ) -> dict[str, Why]:
        """Return the sessions that are throttled now, and why each is."""
        self._note_wanting(states)
        midnight = rules.time_zone.day_of(unix)[1]
        return {
            **self._too_many_waiting(rules, states),
            **self._used_up(rules, states, used, midnight),
        }

    # --- parts ---------------------------------------------------------------------------------

    def _claims_beside(self, limit: Limit, record: SessionRecord) -> list[Claim]:
        """Return the demands of the other sessions that the limit counts."""
        return [
            (other.allowed, len(other.devices))
            for other in self._others(record)
            if limit.holder == (other.group if limit.is_group else other.user)
        ]

    def _others(self, record: SessionRecord) -> list[SessionRecord]:
        """Return all other sessions, including those that rest: each is still a notebook."""
        return [other for other in self._sessions.all_known() if other.id != record.id]

    def _note_wanting(self, states: Iterable[_core.SessionState]) -> None:
        now = {state.id for state in states if state.state in WAITING}
        stayed = {session: None for session in self._wanting if session in now}
        self._wanting = stayed | dict.fromkeys(one.id for one in states if one.id in now)

    def _too_many_waiting(
        self, rules: Rulebook, states: Iterable[_core.SessionState]
    ) -> dict[str, Why]:
        users = {state.id: state.user for state in states}
        waits: dict[Limit, int] = {}
        found = {}
        for session in self._wanting:  # those that began to wait first may wait
            limits = list(rules.limits("waiting", users[session], self._sessions[session].group))
            full = next((limit for limit in limits if waits.get(limit, 0) >= limit.amount), None)
            if full is not None:
                reason = _core.Reason(
                    "throttled_too_many_waiting",
                    who=full.holder,
                    count=int(full.amount),
                    rule=full.rule,
                )
                found[session] = [reason, whom_to_ask(rules)]
                continue
            for limit in limits:
                waits[limit] = waits.get(limit, 0) + 1
        return found

    def _used_up(
        self,
        rules: Rulebook,
        states: Iterable[_core.SessionState],
        used: Used,
        midnight: float,
    ) -> dict[str, Why]:
        found = {}
        for state in states:
            group = self._sessions[state.id].group
            for limit in rules.limits("device_seconds_per_day", state.user, group):
                read = used.used_today_by_group if limit.is_group else used.used_today
                if read(limit.holder) >= limit.amount:
                    reason = _core.Reason(
                        "throttled_used_up",
                        who=limit.holder,
                        seconds=limit.amount,
                        rule=limit.rule,
                        until=midnight,
                    )
                    found[state.id] = [reason, whom_to_ask(rules)]
        return found


def refusal(why: Why) -> OverQuota:
    return OverQuota(sentence(why, str))


def whom_to_ask(rules: Rulebook) -> _core.Reason:
    if rules.contact:
        return _core.Reason("ask_contact", who=rules.contact)
    return _core.Reason("ask_operator")


def advice(rules: Rulebook) -> str:
    """Return the end of a refusal, which says whom to ask."""
    return f"; {sentence([whom_to_ask(rules)], str)}"
