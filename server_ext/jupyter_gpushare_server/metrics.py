"""What Prometheus scrapes at the server's /metrics, computed from the newest snapshot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jupyter_gpushare import protocol
from jupyter_gpushare.protocol import DeviceView, Snapshot

from .attendance import NOBODY, Attendance
from .feed import State

STATES = get_args(protocol.State)
DEVICE_GAUGES: dict[str, tuple[str, Callable[[DeviceView], float]]] = {
    "capacity_bytes": ("Memory that is shared.", lambda device: device.capacity_bytes),
    "persistent_bytes": (
        "Memory that notebooks keep across iterations.",
        lambda device: device.persistent_bytes,
    ),
    "free_bytes": ("Memory that nobody has.", lambda device: device.free_bytes),
    "foreign_bytes": (
        "Memory that programs have which do not share.",
        lambda device: device.foreign_bytes,
    ),
    "lane_bytes": (
        "Memory of all lanes, which notebooks use in turn.",
        lambda device: sum(lane.bytes for lane in device.lanes),
    ),
    "paged_out_bytes": (
        "Memory of idle notebooks that lies on disk.",
        lambda device: sum(view.paged_out_bytes for view in device.sessions),
    ),
    "waiting": (
        "Notebooks that wait for a turn.",
        lambda device: sum(view.state == "waiting" for view in device.sessions),
    ),
    "longest_wait_seconds": (
        "How long the one that waits longest has waited.",
        lambda device: max((view.waiting_seconds or 0.0 for view in device.sessions), default=0.0),
    ),
}


class SnapshotCollector(Collector):
    """Metrics of the broker that `state` shows."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        self._attendance = NOBODY
        self._gone: defaultdict[str, float] = defaultdict(
            float
        )  # device seconds of sessions that ended, by user

    def observe(self, attendance: Attendance) -> None:
        """Keep the time of those who left: a counter must never fall."""
        self._attendance = attendance
        for view in attendance.closed:
            self._gone[view.user] += view.device_seconds

    def describe(self) -> list[Metric]:
        return []  # which names there are depends on the broker; all begin with gpushare_

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        up = isinstance(state, Snapshot)
        yield GaugeMetricFamily("gpushare_broker_up", "Whether the broker answers.", value=up)
        yield self._device_seconds()
        if isinstance(state, Snapshot):
            yield from _device_gauges(state)
            yield _sessions(state)

    def _device_seconds(self) -> Metric:
        total = self._gone.copy()
        for view in self._attendance.present.values():
            total[view.user] += view.device_seconds
        family = CounterMetricFamily(
            "gpushare_device_seconds", "Time that a user's notebooks held turns.", labels=["user"]
        )
        for user, seconds in total.items():
            family.add_metric([user], seconds)
        return family


def _device_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    for name, (sentence, value) in DEVICE_GAUGES.items():
        family = GaugeMetricFamily(f"gpushare_{name}", sentence, labels=["device"])
        for device in snapshot.devices:
            family.add_metric([device.name], value(device))
        yield family


def _sessions(snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "gpushare_sessions", "Notebooks by state.", labels=["device", "state"]
    )
    for device in snapshot.devices:
        count = Counter(view.state for view in device.sessions)
        for state in STATES:
            family.add_metric([device.name, state], count[state])
    return family
