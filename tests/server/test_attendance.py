"""Which sessions came and went, across brokers."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare_server.attendance import EMPTY, RETURN_SECONDS, Attendance

from jupyter_gpushare.wire import snapshot as s

STARTED = 1000.0


def session(name: str) -> s.SessionView:
    fields: dict[str, Any] = dict.fromkeys(s.SessionView.__struct_fields__)
    return s.SessionView(**{**fields, "id": name, "name": name, "user": "u", "device_seconds": 2.0})


def snapshot(*names: str, started: float = STARTED) -> s.Snapshot:
    device = s.DeviceView(
        name="host",
        capacity_bytes=0,
        persistent_bytes=0,
        free_bytes=0,
        running_lanes=1,
        lanes=[],
        sessions=[session(name) for name in names],
    )
    return s.Snapshot("", s.BrokerView(1, 1, started), "fair", [], 0, [device])


def change(attendance: Attendance) -> tuple[list[str], list[str]]:
    return [view.name for view in attendance.opened], [view.name for view in attendance.closed]


def test_the_first_snapshot_opens_all() -> None:
    assert change(EMPTY.after(snapshot("a", "b"))) == (["a", "b"], [])


def test_each_difference_is_told_once() -> None:
    before = EMPTY.after(snapshot("a", "b"))
    after = before.after(snapshot("b", "c"))
    assert change(after) == (["c"], ["a"])
    assert change(after.after(snapshot("b", "c"))) == ([], [])


def test_a_session_that_returns_to_a_new_broker_never_left() -> None:
    known = EMPTY.after(snapshot("a", "b"))
    new = STARTED + 50
    empty = known.after(snapshot(started=new), now=new + 1)
    assert change(empty) == ([], [])
    assert change(empty.after(snapshot("a", "b", started=new), now=new + 2)) == ([], [])


def test_a_session_that_does_not_return_to_a_new_broker_left() -> None:
    new = STARTED + 50
    away = EMPTY.after(snapshot("a", "b")).after(snapshot("a", started=new), now=new + 1)
    late = away.after(snapshot("a", started=new), now=new + RETURN_SECONDS + 1)
    assert change(late) == ([], ["b"])
    assert change(late.after(snapshot(started=new), now=new + RETURN_SECONDS + 2)) == ([], ["a"])
