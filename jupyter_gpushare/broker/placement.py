"""On which of several devices a session goes that may have any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..protocol import Demand


class Room(NamedTuple):
    """What a device has for one more: bytes that nobody has, and how many sessions are there."""

    device: str
    free_bytes: int
    sessions: int


def choose(rooms: Iterable[Room], demand: Demand) -> str:
    """Where the demand finds room now, and of those where each session has most of it, the newcomer
    counted; the first of equals. At its opening a session's demand is seldom known, so those who
    come together spread over the devices.
    """
    needed = demand.persistent_bytes + demand.ephemeral_bytes

    def worth(room: Room) -> tuple[bool, float]:
        return room.free_bytes >= needed, room.free_bytes / (room.sessions + 1)

    return max(rooms, key=worth).device
