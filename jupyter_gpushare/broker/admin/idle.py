"""Looks after notebooks in which nothing runs for long, and after holders that hang.

It says what is due, and keeps those who have given their places to others until their next cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ... import _core
from ...format import duration
from ...wire.snapshot import (
    ACTIVE,
    Intervention,
    RestingView,
)
from ..grants.grants import Place
from ..peer import Peer
from ..snapshot.names import Namer
from .escalation import IDLE, OVERDUE, Ladder, Step
from .rulebook import Rulebook


class Resting(NamedTuple):
    """A session without a place: its memory is on disk, and its process waits for a cell."""

    place: Place  # that it had
    bytes: int


class Due(NamedTuple):
    """A step to be taken, and what to tell the user of it, if anything."""

    session: str
    step: Step
    sentence: str


class Caretaker:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._idle = Ladder(IDLE)
        self._overdue = Ladder(OVERDUE)
        self._resting: dict[str, Resting] = {}

    def follow(
        self, now: float, states: Iterable[_core.SessionState], rules: Rulebook
    ) -> Iterator[Due]:
        """Note who is idle, and who is overdue; what is due by the rules."""
        present = list(states)
        idle = {state.id for state in present if not state.busy and state.state not in ACTIVE}
        overdue = {state.id for state in present if state.state == "overdue"}
        for session, step in self._idle.follow(now, idle | self._resting.keys(), rules.idle):
            yield Due(session, step, self._sentence(session, step, now))
        for session, step in self._overdue.follow(now, overdue, rules.overdue):
            yield Due(session, step, self._sentence(session, step, now))

    # --- who rests -----------------------------------------------------------------------------

    def rests(self, session: str, resting: Resting) -> None:
        self._resting[session] = resting

    def wake(self, session: str) -> None:
        """It is open again."""
        self._resting.pop(session, None)

    def resting_of(self, peer: Peer) -> str | None:
        """The session that rests on a connection, which carries one."""
        resting = (name for name, one in self._resting.items() if one.place.peer is peer)
        return next(resting, None)

    def places(self) -> list[tuple[str, Place]]:
        """All who rest, each with the place that it had."""
        return [(session, one.place) for session, one in self._resting.items()]

    def place(self, session: str) -> Place | None:
        """That it had before it rested; None, if it does not rest."""
        return self._resting[session].place if session in self._resting else None

    def resting_views(self, device: str, namer: Namer, now: float) -> list[RestingView]:
        return [
            RestingView(
                id=session,
                name=namer(session),
                user=one.place.peer.user,
                pid=one.place.peer.pid,
                paged_out_bytes=one.bytes,
                idle_seconds=self.idle_seconds(session, now) or 0.0,
                idle_step=self.idle_step(session),
            )
            for session, one in self._resting.items()
            if device in one.place.devices
        ]

    # --- what people see -----------------------------------------------------------------------

    def idle_seconds(self, session: str, now: float) -> float | None:
        return self._idle.seconds(session, now)

    def idle_step(self, session: str) -> str:
        return self._idle.name(session)

    def interventions(self, now: float) -> list[Intervention]:
        """What only the Jupyter servers can do, each for its own kernels."""
        return [
            Intervention(session, step.name, self._sentence(session, step, now))
            for ladder in (self._idle, self._overdue)
            for session, step in ladder.severe()
        ]

    def _sentence(self, session: str, step: Step, now: float) -> str:
        if not step.sentence:
            return ""
        if (idle := self._idle.seconds(session, now)) is not None:
            return f"No cell has run in this notebook for {duration(idle)}. {step.sentence}"
        late = duration(self._overdue.seconds(session, now) or 0.0)
        return f"This notebook has kept others from the device for {late} too long. {step.sentence}"
