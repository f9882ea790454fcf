"""How many bytes of its device the other sessions leave each session."""

from __future__ import annotations

from collections.abc import Iterator

from ... import _core
from ...wire.messages import Room
from ..sessions import Sessions


class Rooms:
    """Tells sessions their room when it decides whether their demand fits. So a session that has to
    be squeezed, for itself or for a newcomer, learns the limit."""

    def __init__(self, host: _core.Host, sessions: Sessions) -> None:
        self._host = host
        self._sessions = sessions

    def tell_newcomer(self, session: str, now: float) -> None:
        """Tell a session without a measured demand, before the turn in which it measures it."""
        record = self._sessions[session]
        if not record.allowed.measured:
            self.tell(self._host.snapshot(record.device, now), session)

    def tell(self, device: _core.DeviceSnapshot, only: str | None = None) -> None:
        """Tell each session of the device whose room has changed in a way that matters, or the
        `only` one."""
        for state, room in _rooms(device):
            record = self._sessions.get(state.id)
            if record is None or record.gang or only not in (None, state.id):
                continue
            told = device.capacity if record.peer.room < 0 else record.peer.room
            if told != room and _matters(state.demand, told, room):
                record.peer.room = room
                record.peer.send(Room(room))


def _rooms(device: _core.DeviceSnapshot) -> Iterator[tuple[_core.SessionState, int]]:
    states = [(state, _persistent(state)) for state in device.sessions]
    left = device.capacity - device.unmanaged - sum(size for _, size in states)
    return ((state, left + size) for state, size in states)


def _persistent(state: _core.SessionState) -> int:
    """Return the bytes that a session has or waits for: all but its part of a lane."""
    counts = state.lane is not None or state.state == "waiting"
    return state.demand.persistent - state.paged_out_bytes if counts else 0


def _matters(demand: _core.Demand, told: int, room: int) -> bool:
    """Whether the demand fits only one of the two rooms, or is not measured yet."""
    whole = demand.persistent + demand.ephemeral
    return not demand.measured or (whole <= told) != (whole <= room)
