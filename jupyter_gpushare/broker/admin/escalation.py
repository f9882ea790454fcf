"""What is done to notebooks that have been idle, or overdue, for longer and longer.

A ladder knows since when each is, and says which of its steps are due; others take them. Who comes
down begins at the bottom.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .rulebook import Idle, Overdue


class Step(NamedTuple):
    """`key` of the rules says after how many seconds; `sentence` tells a user, if there is any.

    `is_severe` where only the Jupyter server can take it, which owns the kernel.
    """

    name: str
    key: str
    sentence: str
    is_severe: bool = False


IDLE = (
    Step("caches", "give_back_caches_after", ""),
    Step("page_out", "page_out_after", "Its memory was asked to go to disk until the next cell."),
    Step(
        "release",
        "release_after",
        "It was asked to give its place to others; the next cell may have to wait for one.",
    ),
    Step("cull", "cull_after", "Its kernel is to be shut down.", is_severe=True),
)
OVERDUE = (
    Step("interrupt", "interrupt_after", "So its cell is interrupted.", is_severe=True),
    Step("end", "end_after", "So its kernel is ended.", is_severe=True),
)


@dataclass
class Climb:
    since: float
    taken: list[Step] = field(default_factory=list)


class Ladder:
    """Times are monotonic seconds."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        self._climbs: dict[str, Climb] = {}

    def follow(
        self, now: float, sessions: Collection[str], rules: Idle | Overdue
    ) -> Iterator[tuple[str, Step]]:
        """Note who is on the ladder now; the steps that are due, the lowest first."""
        for session in self._climbs.keys() - {*sessions}:
            del self._climbs[session]
        for session in sessions:
            climb = self._climbs.setdefault(session, Climb(now))
            for step in self._due(climb, now, rules):
                climb.taken.append(step)
                yield session, step

    def seconds(self, session: str, now: float) -> float | None:
        """For how long it has been there, or None."""
        climb = self._climbs.get(session)
        return None if climb is None else now - climb.since

    def name(self, session: str) -> str:
        """Of the highest step that was taken, or empty."""
        climb = self._climbs.get(session)
        return "" if climb is None or not climb.taken else _highest(climb, self._steps).name

    def severe(self) -> Iterator[tuple[str, Step]]:
        """The sessions to which the Jupyter server that owns their kernel has to do something."""
        for session, climb in self._climbs.items():
            if climb.taken and (step := _highest(climb, self._steps)).is_severe:
                yield session, step

    def _due(self, climb: Climb, now: float, rules: Idle | Overdue) -> list[Step]:
        lasted = now - climb.since
        left = [step for step in self._steps if step not in climb.taken]
        return [step for step in left if 0 < (getattr(rules, step.key) or 0.0) <= lasted]


def _highest(climb: Climb, steps: tuple[Step, ...]) -> Step:
    return max(climb.taken, key=steps.index)
