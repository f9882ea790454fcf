"""Target `core`: odd numbers for the constructors of the C++ module, and for the events of a
host and of a cluster.

Each byte makes a choice: first of the call, then of a value for each argument. A call succeeds, or
raises an error that the stubs declare and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jupyter_gpushare import _core

GB = 1 << 30
ODD: tuple[Any, ...] = (
    *(0, 1, 2, 3, -1, 0.0, 0.5, 1.0, -0.5, 4096, GB // 2, GB - 1, GB, GB + 1, None, True, False),
    *(2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30),
    *(math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e300, "", "a", "b", "\x00", "fair", "las"),
    *("x" * 1000, "\udcff", [], [1.0, 2.0], {"a": "held back"}, {"": math.nan}),
)
REFUSALS = (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)
WHILE = 10.0  # virtual seconds: whatever the numbers, the machine's are few


class Told(Exception):
    """There are no bytes left."""


class Choices:
    """The choices of the bytes, until there are none left."""

    def __init__(self, data: bytes) -> None:
        self._rest = iter(data)

    def of(self, what: Any) -> Any:
        """Return one of these values. Raises Told if no bytes are left."""
        for number in self._rest:
            return what[number % len(what)]
        raise Told

    def values(self, count: int) -> list[Any]:
        return [self.of(ODD) for _ in range(count)]


# --- values -----------------------------------------------------------------------------------


def demand(from_: Choices) -> _core.Demand:
    return _core.Demand(*from_.values(2), measured=from_.of((True, False)))


def rules(from_: Choices) -> _core.Rules:
    names = ("quantum", "half_life", "lease", "aging", "running_lanes", "boost")
    return _core.Rules(**{from_.of(names): from_.of(ODD) for _ in range(2)})


def spec(from_: Choices) -> _core.SessionSpec:
    names = (
        *("user", "weight", "priority", "remaining_iterations", "turn", "holding"),
        *("waiting", "paused", "device_seconds", "waited_seconds", "iterations"),
        *("paged_out_bytes", "busy", "group", "domain", "squeezed_bytes"),
    )
    odd = {from_.of(names): from_.of(ODD) for _ in range(3)}
    return _core.SessionSpec(**{"user": "u", "demand": demand(from_), **odd})


def job(from_: Choices) -> _core.Job:
    cells = [_core.Cell(*from_.values(3)) for _ in range(from_.of((0, 1, 2)))]
    names = ("arrival", "weight", "priority", "load", "stays", "user", "declares")
    odd = {from_.of(names): from_.of(ODD) for _ in range(2)}
    return _core.Job(from_.of("abc"), cells, demand=demand(from_), **odd)


def gang(from_: Choices) -> _core.Gang:
    names = ("arrival", "skew")
    return _core.Gang(from_.of("abc"), *from_.values(2), **{from_.of(names): from_.of(ODD)})


# --- calls --------------------------------------------------------------------------------------

EVENTS: dict[str, int] = {  # of a session: how many arguments are odd after its id
    "close": 0,
    "request": 1,
    "finish": 1,
    "change": 3,
    "set_busy": 1,
    "paged_out": 1,
    "page_out_failed": 0,
    "preempt": 0,
    "evict": 0,
    "may_keep": 1,
}
ORDERS: dict[str, int] = {  # of a device
    "set_policy": 1,
    "set_running_lanes": 1,
    "set_unmanaged": 1,
    "set_shares": 2,
    "throttle": 1,
    "assign": 0,
}


def host(from_: Choices) -> None:
    """Let events happen to two sessions on one device and a third one on two devices, until there
    are no bytes left."""
    devices = [("one", GB), ("other", from_.of((GB, 2 * GB, *ODD)))]
    policy = from_.of(("fair", "pack", "srtf", "las"))
    known = _core.Host(devices, policy, rules(from_))
    verbs = (*EVENTS, *ORDERS, "open", "open", "request", "request", "report", "lane_bytes")
    now = 0.0
    while True:
        verb = from_.of(verbs)
        before, at = _shown_of(known, now), from_.of((now, now, now + 1, *ODD))
        try:
            happens(known, verb, from_, at)
        except REFUSALS:
            assert _shown_of(known, now) == before, f"{verb} was refused, and changed something"
        else:
            now = max(now, at)
        assert known.is_valid() == "", known.is_valid()


def happens(known: _core.Host, verb: str, from_: Choices, now: Any) -> None:
    session, device = from_.of("abc"), from_.of(("one", "other", ""))
    if verb == "open":
        devices = {"a": ["one"], "b": ["other"], "c": ["one", "other"]}[session]
        known.open(now, session, devices, spec(from_))
    elif verb == "report":
        known.report(now, session, from_.of(ODD), demand(from_), from_.of(ODD))
    elif verb == "lane_bytes":
        known.lane_bytes(device, from_.of(ODD))
    elif verb == "may_keep":
        known.may_keep(session, from_.of(ODD))
    elif verb == "assign":
        known.assign(now)
    elif verb in EVENTS:
        getattr(known, verb)(now, session, *from_.values(EVENTS[verb]))
    else:
        getattr(known, verb)(now, device, *from_.values(ORDERS[verb]))


def _shown_of(known: _core.Host, now: float) -> list[tuple[Any, ...]]:
    return [_told(known.snapshot(device, now)) for device in ("one", "other")]


def _told(device_snapshot: _core.DeviceSnapshot) -> tuple[Any, ...]:
    sessions = [
        (one.id, one.state, one.turn, one.lane, one.weight, one.priority, one.iterations, one.busy)
        for one in device_snapshot.sessions
    ]
    return (
        device_snapshot.policy,
        device_snapshot.persistent,
        device_snapshot.free,
        device_snapshot.running_lanes,
        sessions,
    )


def simulation(from_: Choices) -> None:
    jobs = [job(from_) for _ in range(from_.of((1, 2, 3)))]
    odd = {from_.of(("report", "handover", "paging_rate", "steps")): from_.of(ODD)}
    conduct = _core.Conduct(checks=True, **odd)
    run = _core.Simulation(jobs, from_.of((GB, *ODD)), "fair", rules(from_), conduct, from_.of(ODD))
    run.run(min(one.arrival for one in jobs) + WHILE)
    assert all(outcome.iterations >= 0 for outcome in run.outcomes)


def gangs(from_: Choices) -> None:
    names = ("thresholds", "knob", "tick", "known", "quantum", "consolidates", "start", "resume")
    rules = _core.GangRules(**{from_.of(names): from_.of(ODD) for _ in range(2)})
    policy = from_.of(("las", "srsf", "gittins", ""))
    hosts = [from_.of((4, *ODD)) for _ in range(from_.of((1, 2)))]
    known = _core.ClusterQueue(hosts, policy, rules)
    while True:
        verb = from_.of(("request", "finish", "close", "set_hosts"))
        now = from_.of((1.0, 60.0, 1e300))
        with suppress(*REFUSALS):
            if verb == "request":
                known.request(now, gang(from_))
            elif verb == "set_hosts":
                known.set_hosts(now, from_.values(len(hosts)))
            else:
                getattr(known, verb)(now, from_.of("abc"))
            known.assign(now)
        assert known.is_valid() == "", known.is_valid()


def memory(from_: Choices) -> None:
    try:
        kept = _core.HostLaneMemory(from_.of((GB, *ODD)))
    except RuntimeError:  # as the stub says: there is none
        return
    kept.shrink(from_.of(ODD))


SUBJECTS: tuple[Callable[[Choices], None], ...] = (
    simulation,
    gangs,
    memory,
    host,
)


def fuzz(data: bytes) -> None:
    from_ = Choices(data)
    try:
        from_.of(SUBJECTS)(from_)
    except (*REFUSALS, Told):
        return
