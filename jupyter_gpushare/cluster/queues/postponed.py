"""Jobs that found no room, and are not started again for a while, so that others can start."""

from __future__ import annotations

import math
from typing import NamedTuple


class BackOff(NamedTuple):
    until: float
    seconds: float
    refusal: str  # why its last start failed


class Postponed:
    """The first wait of a job takes `seconds`, each one after it twice as long, up to `most`."""

    def __init__(self, seconds: float, most: float) -> None:
        self._seconds = seconds
        self._most = most
        self._waits: dict[str, BackOff] = {}

    def add(self, now: float, id: str, refusal: str) -> None:
        last = self._waits.get(id)
        seconds = min(2 * last.seconds, self._most) if last else self._seconds
        self._waits[id] = BackOff(now + seconds, seconds, refusal)

    def due(self, now: float) -> list[str]:
        """Return the jobs whose wait has ended by now, each only once."""
        due = [id for id, wait in self._waits.items() if wait.until <= now]
        for id in due:
            self._waits[id] = self._waits[id]._replace(until=math.inf)
        return due

    def refusal(self, id: str) -> str:
        """Why its last start was refused, until it has found room."""
        wait = self._waits.get(id)
        return wait.refusal if wait else ""

    def forget(self, id: str) -> None:
        """Forget a job that has found room, or has ended: its next wait is a first one."""
        self._waits.pop(id, None)
