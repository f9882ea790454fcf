"""The devices of this host: their names, and the choice of those for a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import _core
from ..devices import Device
from ..errors import UnknownDevice
from ..wire.demand import Demand
from ..wire.messages import Open
from .grants.unmanaged import UnmanagedMemory
from .peer import Peer
from .sessions import Sessions
from .snapshot import views


class DeviceFinder:
    """Finds devices by their names. Owns no state: the scheduler knows what is free."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        host: _core.Host,
        sessions: Sessions,
        unmanaged: UnmanagedMemory,
    ) -> None:
        self._devices = devices
        self._host = host
        self._sessions = sessions
        self._unmanaged = unmanaged

    def choose(self, peer: Peer, message: Open, now: float) -> list[str]:
        """Return the devices that the message names, or else the best suitable ones.

        A session that opens again stays on its devices. Raises UnknownDevice.
        """
        record = self._sessions.get(message.id)
        if message.device == "auto" and record and len(record.devices) == message.devices:
            return [*record.devices]
        will_do = self._among(message.among if message.device == "auto" else [message.device])
        if message.devices > len(will_do):
            there = ", ".join(will_do)
            raise UnknownDevice(
                f"{message.devices} devices at once are more than this notebook may use here:"
                f" {there}"
            )
        self.count_unmanaged(will_do, now, peer)
        return self._host.place(will_do, views.demand(message.demand), message.devices)

    def count_unmanaged(self, devices: Sequence[str], now: float, newcomer: Peer) -> None:
        """Count the unmanaged memory of these devices, without the process of the newcomer."""
        for device in devices:
            self._unmanaged.count(device, now, newcomer)

    def meant(self, device: str | None) -> list[str]:
        """Return the named device, or all devices if `device` is empty. Raises UnknownDevice."""
        return [self._named(device)] if device else list(self._devices)

    def device(self, name: str) -> Device:
        return self._devices[name]

    def capacity(self, devices: Sequence[str]) -> int:
        """Return the capacity of the smallest of these devices in bytes."""
        return min(self._devices[device].capacity_bytes for device in devices)

    def whole_device(self, devices: Sequence[str], demand: Demand) -> Demand:
        """Return the demand to count instead of one that is larger than the capacity. No other
        session runs beside it."""
        return Demand(min(demand.persistent_bytes, self.capacity(devices)), 0, measured=False)

    def _among(self, devices: Sequence[str]) -> list[str]:
        """Return the named devices. If none is named, return the GPUs, or the host on a machine
        without GPUs."""
        if devices:
            return list(dict.fromkeys(self._named(device) for device in devices))
        return [device for device in self._devices if device != "host"] or list(self._devices)

    def _named(self, name: str) -> str:
        """Return the name of the device with this name or UUID. Raises UnknownDevice."""
        for device in self._devices.values():
            if name and name in (device.name, device.uuid):
                return device.name
        there = ", ".join(self._devices)
        raise UnknownDevice(f"there is no device {name!r} here; there is {there}")
