"""Device seconds of this day, by user and by group; what was before this broker nobody knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple


class Standing(NamedTuple):
    """A session at one moment; `state` is that of its SessionView."""

    session: str
    user: str
    group: str
    device: str
    state: str
    device_seconds: float


class Today:
    def __init__(self) -> None:
        self._day: date | None = None
        self._seen: dict[str, float] = {}
        self._users: defaultdict[str, float] = defaultdict(float)
        self._groups: defaultdict[str, float] = defaultdict(float)

    def follow(self, day: date, standings: Iterable[Standing]) -> None:
        """Count what they have used since the last time, all of it to this day."""
        if day != self._day:
            self._day = day
            self._users.clear()
            self._groups.clear()
        seen = {}
        for standing in standings:
            seen[standing.session] = total = standing.device_seconds
            used = max(0.0, total - self._seen.get(standing.session, total))
            self._users[standing.user] += used
            self._groups[standing.group] += used
        self._seen = seen

    def used_today(self, user: str) -> float:
        return self._users.get(user, 0.0)

    def used_today_by_group(self, group: str) -> float:
        return self._groups.get(group, 0.0)
