"""Nobody has more than the rules allow: memory and notebooks, waits, and seconds of a day.

What a notebook asks for is refused at once. What it has had already ends at the next boundary: then
it is held back, and its sentence says by which rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ...errors import OverQuota
from ...format import duration, size
from ...wire.messages import Demand
from ...wire.snapshot import WAITING
from .rulebook import Limit, Rulebook
from .standing import Standing

MEMORY = ("persistent", "lane")


class Claim(NamedTuple):
    """What one session was allowed to have, on each of its devices."""

    user: str
    group: str
    devices: tuple[str, ...]
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0

    def with_demand(self, demand: Demand) -> Claim:
        return self._replace(
            persistent_bytes=demand.persistent_bytes, ephemeral_bytes=demand.ephemeral_bytes
        )


class Used(Protocol):
    """Device seconds since midnight."""

    def used_today(self, user: str) -> float: ...
    def used_today_by_group(self, group: str) -> float: ...


class Measure(NamedTuple):
    """How claims add up to what a rule limits, and how people say so much of it."""

    amount: Callable[[Sequence[Claim]], int]
    figure: Callable[[int], str]
    what: str


def persistent_bytes(claims: Iterable[Claim]) -> int:
    return sum(claim.persistent_bytes * len(claim.devices) for claim in claims)


def lane_bytes(claims: Iterable[Claim]) -> int:
    """Those of one user, or of one group, that are on a device have it in turn."""
    return max((claim.ephemeral_bytes for claim in claims), default=0)


MEASURES = {
    "persistent": Measure(persistent_bytes, size, "of persistent memory"),
    "lane": Measure(lane_bytes, size, "inside one iteration"),
    "sessions": Measure(len, str, "notebooks"),
}


class Quotas:
    """Of all sessions of a broker."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._wanting: dict[str, None] = {}  # sessions, as they began to want the device

    def check_newcomer(self, rules: Rulebook, session: str, claim: Claim) -> None:
        """Raises OverQuota where one more with this would be too much."""
        self._check(rules, session, claim, (*MEMORY, "sessions"))

    def adopt(self, session: str, claim: Claim) -> None:
        """It is here, with what it has already."""
        self._claims[session] = claim

    def check_memory(self, rules: Rulebook, session: str, claim: Claim) -> None:
        """Raises OverQuota where so much is too much."""
        self._check(rules, session, claim, MEMORY)

    def check_demand(self, rules: Rulebook, session: str, demand: Demand) -> None:
        """The same, of one that is here."""
        self.check_memory(rules, session, self._claims[session].with_demand(demand))

    def claim(self, session: str, demand: Demand) -> None:
        """It may have so much. What is refused does not count, or others would pay for it."""
        self._claims[session] = self._claims[session].with_demand(demand)

    def rests(self, session: str, claim: Claim) -> None:
        """It has given its memory back, and is a notebook still."""
        self._claims[session] = claim.with_demand(Demand())

    def allowed(self, session: str) -> Claim:
        return self._claims[session]

    def beside(self, session: str, user: str, device: str) -> list[Claim]:
        """What the user's other sessions have on that device."""
        return [
            claim._replace(devices=(device,))
            for other, claim in self._claims.items()
            if other != session and claim.user == user and device in claim.devices
        ]

    def users(self, group: str, device: str) -> set[str]:
        """Those of the group who have notebooks there."""
        there = (claim for claim in self._claims.values() if device in claim.devices)
        return {claim.user for claim in there if claim.group == group}

    def forget(self, session: str) -> None:
        self._claims.pop(session, None)
        self._wanting.pop(session, None)

    def held_back(
        self, rules: Rulebook, standings: Sequence[Standing], used: Used
    ) -> dict[str, str]:
        """Why some may not go on now: session and sentence."""
        self._note_wanting(standings)
        return {**self._too_many_waiting(rules, standings), **_used_up(rules, standings, used)}

    # --- parts ---------------------------------------------------------------------------------

    def _check(self, rules: Rulebook, session: str, claim: Claim, keys: Iterable[str]) -> None:
        for key in keys:
            measure = MEASURES[key]
            for limit in rules.limits(key, claim.user, claim.group):
                others = self._of(limit, session)
                if (amount := measure.amount([*others, claim])) > limit.amount:
                    raise OverQuota(
                        f"{limit.holder} would have {measure.figure(amount)} {measure.what}, where"
                        f" the rule {limit.rule} allows {measure.figure(int(limit.amount))}"
                        f"{whom_to_ask(rules)}"
                    )

    def _of(self, limit: Limit, session: str) -> list[Claim]:
        """What the other sessions of the limit's user or group have."""
        return [
            claim
            for other, claim in self._claims.items()
            if other != session and limit.holder == (claim.group if limit.is_group else claim.user)
        ]

    def _note_wanting(self, standings: Iterable[Standing]) -> None:
        now = {standing.session for standing in standings if standing.state in WAITING}
        stayed = {session: None for session in self._wanting if session in now}
        self._wanting = stayed | dict.fromkeys(s.session for s in standings if s.session in now)

    def _too_many_waiting(self, rules: Rulebook, standings: Iterable[Standing]) -> dict[str, str]:
        by_session = {standing.session: standing for standing in standings}
        waits: dict[Limit, int] = {}
        found = {}
        for session in self._wanting:  # who began first waits
            standing = by_session[session]
            limits = list(rules.limits("waiting", standing.user, standing.group))
            full = next((limit for limit in limits if waits.get(limit, 0) >= limit.amount), None)
            if full is not None:
                found[session] = (
                    f"held back: {full.holder} may have {int(full.amount)} waiting at a time by"
                    f" the rule {full.rule}{whom_to_ask(rules)}"
                )
                continue
            for limit in limits:
                waits[limit] = waits.get(limit, 0) + 1
        return found


def _used_up(rules: Rulebook, standings: Iterable[Standing], used: Used) -> dict[str, str]:
    found = {}
    for standing in standings:
        for limit in rules.limits("device_seconds_per_day", standing.user, standing.group):
            seconds = (used.used_today_by_group if limit.is_group else used.used_today)(
                limit.holder
            )
            if seconds >= limit.amount:
                found[standing.session] = (
                    f"held back until midnight: {limit.holder} has had"
                    f" {duration(limit.amount)} of the device today, the most by the rule"
                    f" {limit.rule}{whom_to_ask(rules)}"
                )
    return found


def whom_to_ask(rules: Rulebook) -> str:
    return f"; ask {rules.contact}" if rules.contact else "; ask who runs this machine"
