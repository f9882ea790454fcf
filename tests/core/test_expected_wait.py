"""The expected wait: what would happen from now on where that is known, and unknown elsewhere."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Demand, Rules, Scheduler, SessionSpec

MB = 1 << 20
DEMAND = Demand(MB, MB)


def scheduler(policy: str = "fair", **users: str) -> Scheduler:
    it = Scheduler(100 * MB, policy, Rules(half_life=1e9))
    for id, user in users.items():
        it.open(0.0, id, SessionSpec(user, demand=DEMAND))
    return it


def runs(it: Scheduler, id: str, turn: int, begin: float, iteration: float, count: int) -> float:
    """One turn of so many iterations; when it ends."""
    end = begin + iteration * count
    assert [grant.session for grant in it.request(begin, id, turn).grants] == [id]
    it.report(end, id, count, DEMAND, None)
    it.finish(end, id, turn)
    return end


def expected(it: Scheduler, id: str, now: float) -> float | None:
    return next(state for state in it.picture(now).sessions if state.id == id).expected_wait


def test_the_wait_behind_a_session_without_a_measured_iteration_is_unknown() -> None:
    it = scheduler(a="u", b="u", c="u")
    for id in ("a", "b", "c"):
        it.request(1.0, id, 1)
    for now in (1.0, 1.2, 2.0, 12.0, 13.0):
        it.assign(now)
        assert expected(it, "b", now) is None
        assert expected(it, "c", now) is None


def test_the_wait_is_what_is_left_of_the_turn_until_its_boundary() -> None:
    it = scheduler(a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.1, 10)
    it.request(now, "a", 2)
    it.request(now + 0.05, "b", 1)
    assert expected(it, "b", now + 0.05) == pytest.approx(0.95 + 0.3 - 1.0)  # after the quantum
    it.assign(now + 0.25)
    assert expected(it, "b", now + 0.28) == pytest.approx(0.02)


def test_the_wait_for_an_iteration_that_outlasts_the_usual_one_is_unknown() -> None:
    it = scheduler(a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.1, 10)
    it.request(now, "a", 2)
    it.request(now, "b", 1)
    it.assign(now + 0.25)
    assert expected(it, "b", now + 0.26) is not None
    for later in (0.5, 1.5, 29.0, 31.0, 32.0):
        it.assign(now + later)
        assert expected(it, "b", now + later) is None


def test_a_turn_of_which_nothing_is_heard_does_not_end_soon() -> None:
    it = scheduler("fifo", a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.1, 10)
    it.report(now, "a", 0, DEMAND, 20)
    it.request(now, "a", 2)
    it.request(now, "b", 1)
    assert expected(it, "b", now) == pytest.approx(2.0)
    assert expected(it, "b", now + 0.5) == pytest.approx(1.5)
    assert expected(it, "b", now + 0.9) is None  # no report for longer than between any two
    assert expected(it, "b", now + 1.1) is None
    it.report(now + 1.2, "a", 12, DEMAND, None)
    assert expected(it, "b", now + 1.2) == pytest.approx(0.8)  # of 8 iterations


def test_what_is_owed_to_others_is_waited_for() -> None:
    """After 15 s without a neighbour its owner waits until the others have had as much."""
    it = scheduler(long="ada", short="bob")
    now = runs(it, "short", 1, 1.0, 0.1, 10)
    it.request(now, "long", 1)
    it.request(now, "short", 2)
    now = now + 15.0
    it.report(now, "long", 1, DEMAND, None)
    assert [grant.session for grant in it.finish(now, "long", 1).grants] == ["short"]
    it.request(now, "long", 2)
    assert expected(it, "long", now) == pytest.approx(15.0, rel=0.1)
    it.report(now + 5.0, "short", 50, DEMAND, None)
    assert expected(it, "long", now + 5.0) == pytest.approx(10.0, rel=0.1)
    it.report(now + 5.9, "short", 9, DEMAND, None)
    assert expected(it, "long", now + 6.0) == pytest.approx(9.0, rel=0.1)


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_declared_iterations_of_those_ahead_are_summed_up(policy: str) -> None:
    it = scheduler(policy, a="u", b="u", c="u")
    now = runs(it, "a", 1, 1.0, 0.5, 2)
    now = runs(it, "b", 1, now, 0.5, 2)
    it.report(now, "a", 0, DEMAND, 10)
    it.report(now, "b", 0, DEMAND, 20)
    it.request(now, "a", 2)
    it.request(now, "b", 2)
    assert expected(it, "b", now) == pytest.approx(5.0)
    it.request(now, "c", 1)
    if policy == "fifo":
        assert expected(it, "c", now) == pytest.approx(15.0)


def test_under_fifo_an_undeclared_length_is_unknown() -> None:
    it = scheduler("fifo", a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.5, 2)
    it.request(now, "a", 2)
    it.request(now, "b", 1)
    assert expected(it, "b", now + 0.1) is None


def test_iterations_that_differ_widely_promise_nothing() -> None:
    it = scheduler(a="u", b="u")
    now = 1.0
    for turn, seconds in enumerate([0.05, 4.0, 0.05, 3.0], 1):
        now = runs(it, "a", turn, now, seconds, 1)
    it.request(now, "a", 5)
    it.request(now, "b", 1)
    assert expected(it, "b", now) is None


def test_a_forecast_changes_nothing() -> None:
    seen, unseen = (scheduler(a="u", b="v", c="v") for _ in range(2))
    for it in (seen, unseen):
        now = runs(it, "a", 1, 1.0, 0.1, 10)
        for id in ("a", "b", "c"):
            it.request(now, id, 2)
        if it is seen:
            it.picture(now + 0.1)
    for step in range(1, 20):
        now = 2.0 + 0.1 * step
        assert bool(seen.assign(now)) == bool(unseen.assign(now))
        assert seen.next_event(now) == unseen.next_event(now)
        assert seen.is_valid() == ""
        seen.picture(now)
