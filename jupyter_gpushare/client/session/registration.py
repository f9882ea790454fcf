"""The first message of a session on each connection, and the use of its answer."""

from __future__ import annotations

from typing import Protocol

from ...wire.demand import Demand
from ...wire.messages import Open, Opened
from ..options import Wanted
from .placement import Placement
from .residency import Residency
from .turn import Turn
from .usage import Owner, Usage

BORNE_FOR_OTHERS = 1.1  # the slowdown up to which a notebook is squeezed to admit others


class Registrant(Owner, Protocol):
    """A session with the fields that other users see."""

    id: str
    name: str
    weight: float
    priority: int
    paused: bool
    squeeze: Wanted


class Registration:
    """The registration of one session. The caller has the link's lock. `secret` proves that a
    connection belongs to the session."""

    def __init__(
        self,
        owner: Registrant,
        usage: Usage,
        turn: Turn,
        residency: Residency,
        placement: Placement,
        secret: str,
    ) -> None:
        self._owner = owner
        self._usage = usage
        self._turn = turn
        self._residency = residency
        self._placement = placement
        self._secret = secret

    def message(self) -> Open:
        """Return the message: what this session is, and what it holds or waits for. The key of its
        handoff slot is new, so a direct handoff that was written for an earlier broker no longer
        gives a turn."""
        self._turn.note_gone()
        owner, usage, turn, residency = self._owner, self._usage, self._turn, self._residency
        device, among = self._placement.wanted()
        waiting = turn.waiting and not turn.holding
        waits = waiting or residency.returning
        lasted = usage.lasted()
        left, loop = usage.progress() or (None, None)
        return Open(
            id=owner.id,
            name=owner.name,
            device=device,
            among=among,
            devices=self._placement.devices,
            weight=owner.weight,
            priority=owner.priority,
            demand=usage.demand(turn.holding) if usage.iterations else Demand(),
            remaining_iterations=left,
            loop_iterations=loop,
            turn=turn.number,
            holding=turn.holding,
            waiting=waiting,
            paused=owner.paused,
            device_seconds=usage.device_seconds + (lasted if turn.holding else 0.0),
            waited_seconds=usage.waited_seconds + (lasted if waits else 0.0),
            iterations=usage.iterations,
            paged_out_bytes=residency.paged_out_bytes,
            busy=residency.busy,
            handoff_slot=turn.handoff_slot.name,
            key=turn.handoff_slot.new_key(),
            secret=self._secret,
            bears_slowdown=BORNE_FOR_OTHERS if owner.squeeze == "auto" else 1.0,
            squeezed_bytes=turn.squeezed_bytes,
            shares=self._placement.devices == 1,
        )

    def accept(self, answer: Opened) -> None:
        """Apply the answer. Raises ProtocolError if the broker is too old for the request."""
        self._placement.settle(answer)
        self._owner.memory = self._placement.counted(self._owner.memory)
        self._owner.memory.leave_room(self._placement.room)
        self._turn.was_registered()
        self._usage.was_registered()
        self._residency.was_registered()
