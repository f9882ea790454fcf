"""The scheduler of one device: a host that has no other device."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpushare._core import Decision, DeviceSnapshot, Host, Rules, SessionSpec, policies

DEVICE = "device"
POLICIES = [name for name, _ in policies()]


def event_of_device(name: str) -> Callable[..., Decision]:
    event = getattr(Host, name)
    return lambda self, now, *args, **named: event(self, now, DEVICE, *args, **named)


class Scheduler(Host):
    def __init__(self, capacity: int, policy: str = "fair", rules: Rules | None = None) -> None:
        super().__init__([(DEVICE, capacity)], policy, rules or Rules())

    def open(self, now: float, id: str, spec: SessionSpec) -> Decision:  # type: ignore[override]
        return super().open(now, id, [DEVICE], spec)

    def snapshot(self, now: float) -> DeviceSnapshot:  # type: ignore[override]
        return super().snapshot(DEVICE, now)

    throttle = event_of_device("throttle")
    set_shares = event_of_device("set_shares")
    set_policy = event_of_device("set_policy")
    set_running_lanes = event_of_device("set_running_lanes")
    set_unmanaged = event_of_device("set_unmanaged")
