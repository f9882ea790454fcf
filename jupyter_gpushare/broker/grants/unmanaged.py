"""Unmanaged memory: GPU memory of programs that are not sessions."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ... import _core
from ...devices import Device
from ...devices.nvml import GpuUse
from ..peer import Peer
from ..sessions import Sessions
from .grants import Grants

INTERVAL_SECONDS = 1.0  # between two queries to a driver


class UnmanagedMemory:
    """Queries the drivers periodically, and tells the scheduler what has changed."""

    def __init__(
        self, devices: Iterable[Device], host: _core.Host, sessions: Sessions, grants: Grants
    ) -> None:
        self._ask = {device.name: device.usage for device in devices if device.usage}
        self._due = dict.fromkeys(self._ask, 0.0)
        self._host = host
        self._sessions = sessions
        self._grants = grants

    def count(self, device: str, now: float, newcomer: Peer | None = None) -> None:
        """Count unmanaged memory, at most once a second, and not during recovery, when sessions of
        the previous broker may still be missing. A driver that does not answer changes nothing."""
        if self._host.recovering or now < self._due.get(device, float("inf")):
            return
        self._due[device] = now + INTERVAL_SECONDS
        peers = [record.peer for record in self._sessions if device in record.devices]
        ours = {peer.pid for peer in (*peers, newcomer) if peer is not None}
        device_snapshot = self._host.snapshot(device, now)
        usage = self._ask[device]()
        size = None if usage is None else unmanaged_bytes(usage, ours, device_snapshot)
        if size is not None and size != self._host.unmanaged(device):
            self._grants.enact(self._host.set_unmanaged(now, device, size))


def unmanaged_bytes(
    usage: GpuUse, ours: Set[int], device_snapshot: _core.DeviceSnapshot
) -> int | None:
    """Return the bytes of all programs except `ours`, the processes of the device's sessions; None
    if that is unknown now.

    If the driver reports the memory of each process, that of the other processes counts. There are
    three exceptions: the driver does not report it; some of ours are in another container, where
    their process id is 0 here; or the driver numbers processes otherwise than this container, so it
    lists none of ours although they have memory. Then the result is all used memory less the memory
    of our sessions by their own reports. It is unknown until the demand of each session is
    measured.
    """
    others = [size for pid, size in usage.processes.items() if pid not in ours]
    held = device_snapshot.persistent + sum(lane.bytes for lane in device_snapshot.lanes)
    knows_ours = 0 not in ours and (ours & usage.processes.keys() or not held)
    if knows_ours and None not in others:
        return sum(size or 0 for size in others)
    if all(state.demand.measured for state in device_snapshot.sessions):
        return max(0, usage.used_bytes - held)
    return None
