"""Invariants of every Snapshot."""

from __future__ import annotations

from jupyter_gpushare.wire.snapshot import DeviceView


def is_valid(device: DeviceView) -> bool:
    """Whether each session is in its lane alone, and all is counted."""
    lane_of = {member: lane.id for lane in device.lanes for member in lane.members}
    used = device.persistent_bytes + sum(lane.bytes for lane in device.lanes)
    return (
        lane_of == {view.id: view.lane for view in device.sessions}
        and used + device.free_bytes == device.capacity_bytes
        and device.persistent_bytes == sum(view.persistent_bytes for view in device.sessions)
    )
