"""Which sessions came and went, across brokers."""

from __future__ import annotations

from jupyter_gpushare_server.events.attendance import EMPTY, RETURN_SECONDS, Attendance
from msgspec.structs import replace

from jupyter_gpushare.wire import snapshot as s

from ....snapshots import IDLE, snapshot_of

STARTED = 1000.0


def snapshot(*names: str, started: float = STARTED) -> s.Snapshot:
    return snapshot_of(*(replace(IDLE, id=name, name=name) for name in names), started=started)


def change(attendance: Attendance) -> tuple[list[str], list[str]]:
    return [view.name for view in attendance.opened], [view.name for view in attendance.closed]


def test_each_difference_is_told_once() -> None:
    before = EMPTY.after(snapshot("a", "b"))
    assert change(before) == (["a", "b"], [])
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
