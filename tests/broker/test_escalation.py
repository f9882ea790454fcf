"""The steps for sessions that are idle, or overdue, for long, in time that a test tells."""

from __future__ import annotations

from jupyter_gpushare.broker.admin.idle import IDLE, OVERDUE, Escalation
from jupyter_gpushare.broker.admin.rulebook import Duration, Idle, Overdue

ALL = Idle(
    give_back_caches_after=Duration(60),
    page_out_after=Duration(600),
    release_after=Duration(1800),
    cull_after=Duration(7200),
)


def taken(
    escalation: Escalation, now: float, *sessions: str, rules: Idle | Overdue = ALL
) -> list[str]:
    return [f"{name} {step.name}" for name, step in escalation.follow(now, sessions, rules)]


def test_each_step_is_taken_once_when_its_time_has_come() -> None:
    escalation = Escalation(IDLE)
    assert taken(escalation, 100.0, "a") == []
    assert taken(escalation, 159.9, "a") == []
    assert taken(escalation, 160.0, "a") == ["a caches"]
    assert taken(escalation, 699.0, "a") == []
    assert taken(escalation, 700.0, "a") == ["a page_out"]
    assert taken(escalation, 1900.0, "a") == ["a release"]
    assert taken(escalation, 7300.0, "a") == ["a cull"]
    assert taken(escalation, 1e9, "a") == []


def test_a_session_that_runs_a_cell_begins_at_the_bottom() -> None:
    escalation = Escalation(IDLE)
    taken(escalation, 0.0, "a")
    assert taken(escalation, 700.0, "a") == ["a caches", "a page_out"]
    assert taken(escalation, 701.0) == []
    assert (escalation.name("a"), escalation.seconds("a", 701.0)) == ("", None)
    assert taken(escalation, 702.0, "a") == []
    assert taken(escalation, 761.9, "a") == []
    assert taken(escalation, 762.0, "a") == ["a caches"]


def test_the_highest_step_is_shown_and_for_how_long() -> None:
    escalation = Escalation(IDLE)
    taken(escalation, 0.0, "a", "b")
    taken(escalation, 60.0, "a", "b")
    assert (escalation.name("a"), escalation.seconds("a", 61.0)) == ("caches", 61.0)
    taken(escalation, 1800.0, "a", "b")
    assert escalation.name("b") == "release"


def test_a_step_without_a_time_or_with_0_is_left_out() -> None:
    escalation = Escalation(IDLE)
    rules = Idle(page_out_after=Duration(10), release_after=Duration(0))
    taken(escalation, 0.0, "a", rules=rules)
    assert taken(escalation, 1e9, "a", rules=rules) == ["a page_out"]


def test_without_rules_nothing_is_ever_done() -> None:
    for escalation, rules in ((Escalation(IDLE), Idle()), (Escalation(OVERDUE), Overdue())):
        taken(escalation, 0.0, "a", rules=rules)
        assert taken(escalation, 1e9, "a", rules=rules) == []


def test_rules_that_change_hold_at_once() -> None:
    escalation = Escalation(IDLE)
    taken(escalation, 0.0, "a", rules=Idle())
    assert taken(escalation, 700.0, "a", rules=Idle()) == []
    assert taken(escalation, 701.0, "a") == ["a caches", "a page_out"]


def test_only_what_ends_or_interrupts_is_left_to_the_jupyter_server() -> None:
    idle, overdue = Escalation(IDLE), Escalation(OVERDUE)
    rules = Overdue(interrupt_after=Duration(5), end_after=Duration(50))
    taken(idle, 0.0, "a")
    taken(idle, 1800.0, "a")
    assert list(idle.severe()) == []
    taken(idle, 7200.0, "a")
    assert [(name, step.name) for name, step in idle.severe()] == [("a", "cull")]
    taken(overdue, 0.0, "b", rules=rules)
    taken(overdue, 5.0, "b", rules=rules)
    assert [(name, step.name) for name, step in overdue.severe()] == [("b", "interrupt")]
    taken(overdue, 50.0, "b", rules=rules)
    assert [(name, step.name) for name, step in overdue.severe()] == [("b", "end")]
    taken(overdue, 51.0, rules=rules)
    assert list(overdue.severe()) == []
