"""On which of several devices a session goes that may have any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..devices import Device
from ..errors import UnknownDevice
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


def among(devices: Mapping[str, Device], names: Iterable[str]) -> list[Device]:
    """Those that are named; if none is, the GPUs, and the host where there are none."""
    if told := [named(devices, name) for name in names]:
        return told
    return [device for device in devices.values() if device.name != "host"] or [*devices.values()]


def named(devices: Mapping[str, Device], name: str) -> Device:
    """By its name or its UUID. Raises UnknownDevice."""
    for device in devices.values():
        if name and name in (device.name, device.uuid):
            return device
    there = ", ".join(devices)
    raise UnknownDevice(f"there is no device {name!r} here; there is {there}")
