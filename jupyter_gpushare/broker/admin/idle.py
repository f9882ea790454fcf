"""Idle culling, and the steps against overdue turns: escalation steps, and when each is due.

This module only decides: Enforcement takes the steps, and Jupyter servers the severe ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ... import _core
from ...format import duration
from ...wire.snapshot import ACTIVE, Intervention
from ..sessions import Sessions
from .rulebook import Idle, Overdue, Rulebook


class IdleStep(NamedTuple):
    """One escalation step. The rule `key` has the seconds after which it is due; a step without a
    key is always due at once. `sentence` tells the user of the step; if it is empty, the user is
    not told.

    `is_severe` is True where only the Jupyter server, which owns the kernel, can take the step.
    """

    name: str
    key: str
    sentence: str
    is_severe: bool = False

    def is_due(self, lasted: float, rules: Idle | Overdue) -> bool:
        return not self.key or 0 < (getattr(rules, self.key) or 0.0) <= lasted


IDLE = (
    IdleStep("caches", "give_back_caches_after", ""),
    IdleStep(
        "page_out", "page_out_after", "Its memory was asked to go to disk until the next cell."
    ),
    IdleStep(
        "release",
        "release_after",
        "It was asked to release the device to others; its next cell may wait for admission.",
    ),
    IdleStep("cull", "cull_after", "Its kernel is to be shut down.", is_severe=True),
)
OVERDUE = (
    IdleStep(
        "tell",
        "",
        "Its code has come to no iteration boundary at which its turn could end: `del` the last"
        " output before code that runs long without PyTorch, run such code in another process, or"
        " make each `with gpushare.turn():` shorter.",
    ),
    IdleStep("interrupt", "interrupt_after", "So its cell is interrupted.", is_severe=True),
    IdleStep("end", "end_after", "So its kernel is ended.", is_severe=True),
)


class Due(NamedTuple):
    """A step that is due, and the sentence for the user, which may be empty."""

    session: str
    step: IdleStep
    sentence: str


@dataclass
class IdleProgress:
    """The time since which a session has been idle or overdue, and the steps that were taken."""

    since: float
    taken: list[IdleStep] = field(default_factory=list)


class Escalation:
    """Owns the progress of each session that is idle, or overdue. A session that recovers starts
    again with the first step. Times are monotonic seconds."""

    def __init__(self, steps: tuple[IdleStep, ...]) -> None:
        self._steps = steps
        self._progress: dict[str, IdleProgress] = {}

    def follow(
        self, now: float, sessions: Collection[str], rules: Idle | Overdue
    ) -> Iterator[tuple[str, IdleStep]]:
        """Note the sessions that are idle, or overdue, now. Yields the steps due, mildest first."""
        for session in self._progress.keys() - {*sessions}:
            del self._progress[session]
        for session in sessions:
            progress = self._progress.setdefault(session, IdleProgress(now))
            for step in self._due(progress, now, rules):
                progress.taken.append(step)
                yield session, step

    def seconds(self, session: str, now: float) -> float | None:
        """Return for how long a session has been idle, or overdue; None if it is not."""
        progress = self._progress.get(session)
        return None if progress is None else now - progress.since

    def name(self, session: str) -> str:
        """Return the name of the highest step that was taken, or an empty string."""
        progress = self._progress.get(session)
        return "" if progress is None or not progress.taken else self._highest(progress).name

    def severe(self) -> Iterator[tuple[str, IdleStep]]:
        """Yield the sessions with a step that the Jupyter server of their kernel has to take."""
        for session, progress in self._progress.items():
            if progress.taken and (step := self._highest(progress)).is_severe:
                yield session, step

    def _due(self, progress: IdleProgress, now: float, rules: Idle | Overdue) -> list[IdleStep]:
        lasted = now - progress.since
        left = [step for step in self._steps if step not in progress.taken]
        return [step for step in left if step.is_due(lasted, rules)]

    def _highest(self, progress: IdleProgress) -> IdleStep:
        return max(progress.taken, key=self._steps.index)


class IdleCulling:
    """Decides which steps are due for idle sessions and for overdue holders. A holder is overdue
    `lease_seconds` after it was asked to yield. Times are monotonic seconds."""

    def __init__(self, sessions: Sessions, lease_seconds: float) -> None:
        self._sessions = sessions
        self._lease_seconds = lease_seconds
        self._idle = Escalation(IDLE)
        self._overdue = Escalation(OVERDUE)

    def follow(
        self, now: float, states: Iterable[_core.SessionState], rules: Rulebook
    ) -> Iterator[Due]:
        """Note the sessions that are idle or overdue. Yields what is due by the rules."""
        present = list(states)
        idle = {state.id for state in present if not state.busy and state.state not in ACTIVE}
        overdue = {state.id for state in present if state.state == "overdue"}
        resting = self._sessions.resting().keys()
        for session, step in self._idle.follow(now, idle | resting, rules.idle):
            yield Due(session, step, self._sentence(session, step, now))
        for session, step in self._overdue.follow(now, overdue, rules.overdue):
            yield Due(session, step, self._sentence(session, step, now))

    def idle_seconds(self, session: str, now: float) -> float | None:
        return self._idle.seconds(session, now)

    def idle_step(self, session: str) -> str:
        return self._idle.name(session)

    def interventions(self, now: float) -> list[Intervention]:
        """Return the steps that only the Jupyter servers can take, each for its own kernels."""
        return [
            Intervention(session, step.name, self._sentence(session, step, now))
            for escalation in (self._idle, self._overdue)
            for session, step in escalation.severe()
        ]

    def _sentence(self, session: str, step: IdleStep, now: float) -> str:
        if not step.sentence:
            return ""
        if (idle := self._idle.seconds(session, now)) is not None:
            return f"No cell has run in this notebook for {duration(idle)}. {step.sentence}"
        asked = duration(self._lease_seconds + (self._overdue.seconds(session, now) or 0.0))
        return (
            f"This notebook was asked {asked} ago to let others run, and has not. {step.sentence}"
        )
