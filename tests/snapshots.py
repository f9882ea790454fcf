"""Snapshots for tests, and the invariants of every one."""

from __future__ import annotations

from jupyter_gpushare.wire import snapshot as s

GIB = 1 << 30
IDLE = s.SessionView(
    id="a",
    name="a.ipynb",
    user="ada",
    pid=1,
    state="idle",
    persistent_bytes=GIB,
    ephemeral_bytes=GIB,
    measured=True,
    lane=0,
    position=None,
    waiting_seconds=None,
    expected_wait_seconds=None,
    reason="",
    device_seconds=1.0,
    waited_seconds=0.0,
    iterations=8,
    remaining_iterations=None,
    weight=1.0,
    priority=0,
    paged_out_bytes=0,
    busy=False,
    group="",
    idle_seconds=None,
    idle_step="",
)


def snapshot_of(*sessions: s.SessionView, started: float = 0.0) -> s.Snapshot:
    """Return a host of 8 GiB whose only lane has all of these sessions."""
    lane = s.LaneView(0, GIB, "a", [session.id for session in sessions])
    device = s.DeviceView(
        name="host",
        capacity_bytes=8 * GIB,
        persistent_bytes=2 * GIB,
        free_bytes=5 * GIB,
        running_lanes=1,
        lanes=[lane],
        sessions=list(sessions),
    )
    policies = [s.PolicyView("fair", "everybody the same time")]
    return s.Snapshot("0.1.0", s.BrokerView(7, 1, started), "fair", policies, 1, [device])


def is_valid(device: s.DeviceView) -> bool:
    """Whether each session is in its lane alone, and all is counted."""
    lane_of = {member: lane.id for lane in device.lanes for member in lane.members}
    used = device.persistent_bytes + sum(lane.bytes for lane in device.lanes)
    return (
        lane_of == {view.id: view.lane for view in device.sessions}
        and used + device.free_bytes == device.capacity_bytes
        and device.persistent_bytes == sum(view.persistent_bytes for view in device.sessions)
    )
