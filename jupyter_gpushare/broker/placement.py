"""On which of several devices a session goes that may have any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..devices import Device
from ..errors import UnknownDevice
from ..wire.protocol import Demand


class Room(NamedTuple):
    """What a device has for one more: bytes that nobody has, and how many sessions are there."""

    device: str
    free_bytes: int
    sessions: int


def choose(rooms: Iterable[Room], demand: Demand, count: int = 1) -> list[str]:
    """Where the demand finds room now, and of those where each session has most of it, the newcomer
    counted; the first of equals, and in their order. At its opening a session's demand is seldom
    known, so those who come together spread over the devices.

    Raises UnknownDevice where there are not so many.
    """
    needed = demand.persistent_bytes + demand.ephemeral_bytes

    def worth(room: Room) -> tuple[bool, float]:
        return room.free_bytes >= needed, room.free_bytes / (room.sessions + 1)

    there = list(rooms)
    if count > len(there):
        names = ", ".join(room.device for room in there)
        raise UnknownDevice(
            f"{count} devices at once are more than this notebook may use here: {names}"
        )
    chosen = sorted(there, key=worth, reverse=True)[:count]
    return [room.device for room in there if room in chosen]


def among(devices: Mapping[str, Device], names: Iterable[str]) -> list[Device]:
    """Those that are named; if none is, the GPUs, and the host where there are none."""
    if told := {device.name: device for device in (named(devices, name) for name in names)}:
        return [*told.values()]
    return [device for device in devices.values() if device.name != "host"] or [*devices.values()]


def named(devices: Mapping[str, Device], name: str) -> Device:
    """By its name or its UUID. Raises UnknownDevice."""
    for device in devices.values():
        if name and name in (device.name, device.uuid):
            return device
    there = ", ".join(devices)
    raise UnknownDevice(f"there is no device {name!r} here; there is {there}")
