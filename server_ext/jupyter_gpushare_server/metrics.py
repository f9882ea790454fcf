"""The metrics that Prometheus scrapes at the server's /metrics, from the newest snapshot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jupyter_gpushare.wire.jobs import OVER, ClusterView, NodeView
from jupyter_gpushare.wire.jobs import State as JobState
from jupyter_gpushare.wire.snapshot import DeviceView, SessionView, Snapshot
from jupyter_gpushare.wire.snapshot import State as SessionState

from .events.attendance import Attendance
from .feed import State

Seen = TypeVar("Seen", DeviceView, NodeView)
MOST_LEFT = 1000  # sessions that have left, and may come back
STATES = get_args(SessionState)
JOB_STATES = [state for state in get_args(JobState) if state not in OVER]
DEVICE_GAUGES: dict[str, tuple[str, Callable[[DeviceView], float]]] = {
    "capacity_bytes": ("Memory that is shared.", lambda device: device.capacity_bytes),
    "lanes": (
        "Lanes: pieces of memory that notebooks use in turn.",
        lambda device: len(device.lanes),
    ),
    "running_lanes": (
        "Lanes in which a notebook has a turn now.",
        lambda device: sum(lane.holder is not None for lane in device.lanes),
    ),
    "persistent_bytes": (
        "Memory that notebooks keep across iterations.",
        lambda device: device.persistent_bytes,
    ),
    "free_bytes": ("Free memory.", lambda device: device.free_bytes),
    "unmanaged_bytes": (
        "Unmanaged memory, of programs that do not share.",
        lambda device: device.unmanaged_bytes,
    ),
    "shared_lanes": (
        "Lanes that two notebooks use at once.",
        lambda device: sum(lane.beside is not None for lane in device.lanes),
    ),
    "lane_bytes": (
        "Memory of all lanes, which notebooks use in turn.",
        lambda device: sum(lane.bytes for lane in device.lanes),
    ),
    "paged_out_bytes": (
        "Paged out memory of notebooks, on disk.",
        lambda device: sum(view.paged_out_bytes for view in device.sessions),
    ),
    "squeezed": (
        "Notebooks whose iterations have less memory than they would take.",
        lambda device: sum(view.squeezed_bytes > 0 for view in device.sessions),
    ),
    "resting": (
        "Notebooks that were released until their next cell.",
        lambda device: len(device.resting),
    ),
    "waiting": (
        "Notebooks that wait for a turn.",
        lambda device: sum(view.state == "waiting" for view in device.sessions),
    ),
    "longest_wait_seconds": (
        "Longest wait of the notebooks that wait now.",
        lambda device: max((view.waiting_seconds or 0.0 for view in device.sessions), default=0.0),
    ),
}


USER_GAUGES: dict[str, tuple[str, Callable[[SessionView], float]]] = {
    "user_sessions": ("Notebooks of a user.", lambda view: 1),
    "user_persistent_bytes": (
        "Memory that a user's notebooks keep on the device.",
        lambda view: max(0, view.persistent_bytes - view.paged_out_bytes),
    ),
    "user_waiting": ("Notebooks of a user that wait.", lambda view: view.state == "waiting"),
}
COUNTERS: dict[str, tuple[str, Callable[[SessionView], float]]] = {
    "device_seconds": (
        "Time that a user's notebooks held turns, of each device.",
        lambda view: view.device_seconds * max(1, len(view.gang)),
    ),
    "waited_seconds": (
        "Time that a user's notebooks waited for turns.",
        lambda view: view.waited_seconds,
    ),
    "iterations": ("Iterations of a user's notebooks.", lambda view: view.iterations),
}


NODE_GAUGES: dict[str, tuple[str, Callable[[NodeView], float]]] = {
    "node_up": ("Whether a node of the cluster answers.", lambda node: node.alive),
    "node_gpus": ("GPUs of a node of the cluster.", lambda node: node.gpus),
    "node_used_gpus": (
        "GPUs of a node that any process has, ours included.",
        lambda node: node.used,
    ),
    "node_jobs_gpus": ("GPUs of a node that jobs of this user have.", lambda node: node.ours),
}


class SnapshotCollector(Collector):
    """Return metrics of the broker that `state` shows, and of the jobs that `cluster` shows."""

    def __init__(
        self, state: Callable[[], State], cluster: Callable[[], ClusterView | None]
    ) -> None:
        self._state = state
        self._cluster = cluster
        # by user and session, the least recently seen first
        self._seen: dict[tuple[str, str], SessionView] = {}
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(float)  # counter, user

    def observe(self, attendance: Attendance) -> None:
        """Add the growth of each session since it was last seen. A counter must never fall or count
        twice, although a session may come back with less than it had, or with its old values."""
        for view in attendance.present.values():
            before = self._seen.pop((view.user, view.id), None)
            self._seen[view.user, view.id] = view
            for name, (_, value) in COUNTERS.items():
                grown = value(view) - (0.0 if before is None else value(before))
                self._sums[name, view.user] += max(0.0, grown)
        while len(self._seen) > len(attendance.present) + MOST_LEFT:
            del self._seen[next(iter(self._seen))]

    def describe(self) -> list[Metric]:
        return []  # the names depend on the broker; all of them begin with gpushare_

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        up = isinstance(state, Snapshot)
        yield GaugeMetricFamily("gpushare_broker_up", "Whether the broker answers.", value=up)
        yield from self._counters()
        if isinstance(state, Snapshot):
            yield GaugeMetricFamily(
                "gpushare_broker_recovering",
                "Whether notebooks still come back after a restart of the broker.",
                value=state.broker.recovering,
            )
            yield from _gauges("device", DEVICE_GAUGES, state.devices)
            yield from _user_gauges(state)
            yield _sessions(state)
        if (cluster := self._cluster()) is not None:
            yield _jobs(cluster)
            yield from _gauges("node", NODE_GAUGES, cluster.nodes)

    def _counters(self) -> Iterator[Metric]:
        for name, (sentence, _) in COUNTERS.items():
            family = CounterMetricFamily(f"gpushare_{name}", sentence, labels=["user"])
            for (counter, user), total in self._sums.items():
                if counter == name:
                    family.add_metric([user], total)
            yield family


def _gauges(
    label: str, gauges: dict[str, tuple[str, Callable[[Seen], float]]], seen: Iterable[Seen]
) -> Iterator[Metric]:
    """Yield a gauge family for each row; `label` distinguishes the objects in `seen`."""
    for name, (sentence, value) in gauges.items():
        family = GaugeMetricFamily(f"gpushare_{name}", sentence, labels=[label])
        for one in seen:
            family.add_metric([one.name], value(one))
        yield family


def _user_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    for name, (sentence, value) in USER_GAUGES.items():
        family = GaugeMetricFamily(f"gpushare_{name}", sentence, labels=["device", "user"])
        for device in snapshot.devices:
            sums: Counter[str] = Counter()
            for view in device.sessions:
                sums[view.user] += int(value(view))
            for user, total in sums.items():
                family.add_metric([device.name, user], total)
        yield family


def _jobs(cluster: ClusterView) -> Metric:
    family = GaugeMetricFamily(
        "gpushare_jobs", "Jobs of this user that are not over, by state.", labels=["state"]
    )
    count = Counter(job.state for job in cluster.jobs)
    for state in JOB_STATES:
        family.add_metric([state], count[state])
    return family


def _sessions(snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "gpushare_sessions", "Notebooks by state.", labels=["device", "state"]
    )
    for device in snapshot.devices:
        count = Counter(view.state for view in device.sessions)
        for state in STATES:
            family.add_metric([device.name, state], count[state])
    return family
