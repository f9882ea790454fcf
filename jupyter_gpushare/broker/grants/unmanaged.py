"""Memory of a GPU that programs have which are no sessions: nobody asked them, and it is gone."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ... import _core
from ...devices import Device
from ...devices.nvml import Usage

INTERVAL_SECONDS = 1.0  # between two questions to a driver


class Foreign:
    """Asks the drivers now and then."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._ask = {device.name: device.usage for device in devices if device.usage}
        self._due = dict.fromkeys(self._ask, 0.0)

    def is_due(self, device: str, now: float) -> bool:
        return now >= self._due.get(device, float("inf"))

    def ask(self, device: str, ours: Set[int], picture: _core.Picture, now: float) -> int | None:
        """Bytes; None where the driver does not answer, and what it said last holds."""
        self._due[device] = now + INTERVAL_SECONDS
        usage = self._ask[device]()
        return None if usage is None else foreign_bytes(usage, ours, picture)


def foreign_bytes(usage: Usage, ours: Set[int], picture: _core.Picture) -> int | None:
    """What all have but `ours`, the processes of the device's sessions; None if nobody can say now.

    Where the driver tells the memory of each process, that of the others counts. Where it does not,
    or some of ours are of another container (their number is 0 here), or the driver numbers
    processes otherwise than this container and so knows none of ours although they have memory: all
    that is used, less what our sessions have by their own count. That says nothing while the demand
    of one of them is unknown.
    """
    others = [size for pid, size in usage.processes.items() if pid not in ours]
    held = picture.persistent + sum(lane.bytes for lane in picture.lanes)
    knows_ours = 0 not in ours and (ours & usage.processes.keys() or not held)
    if knows_ours and None not in others:
        return sum(size or 0 for size in others)
    if all(state.demand.measured for state in picture.sessions):
        return max(0, usage.used_bytes - held)
    return None
