"""The expected wait: what would happen from now on if that is known; otherwise unknown."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpushare._core import Demand, Rules, SessionSpec

from .looks import look
from .plain import Job, Simulation
from .scheduler import Scheduler
from .searches import tries

MB = 1 << 20
DEMAND = Demand(MB, MB)
LOOPS = [(0.0313, "u", 0.5)] * 2 + [(1.1319, "u", 1.0), (1.1319, "v", 0.5), (0.0313, "v", 0.5)]


def scheduler(policy: str = "fair", **users: str) -> Scheduler:
    it = Scheduler(100 * MB, policy, Rules(half_life=1e9))
    for id, user in users.items():
        it.open(0.0, id, SessionSpec(user, demand=DEMAND))
    return it


def runs(it: Scheduler, id: str, turn: int, begin: float, iteration: float, count: int) -> float:
    """Run one turn of `iterations` iterations; return when it ends."""
    end = begin + iteration * count
    assert [grant.session for grant in it.request(begin, id, turn).grants] == [id]
    it.report(end, id, count, DEMAND, None)
    it.finish(end, id, turn)
    return end


def expected(it: Scheduler, id: str, now: float) -> float | None:
    return look(it, id, now).expected_wait


def test_a_turn_without_reports_does_not_end_soon() -> None:
    it = scheduler("fifo", a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.1, 10)
    it.request(now, "a", 2)
    it.request(now, "b", 1)
    assert expected(it, "b", now) is None  # under `fifo` a has to declare its length
    it.report(now, "a", 0, DEMAND, 1_000_000_000)
    assert expected(it, "b", now) is None  # years
    it.report(now, "a", 0, DEMAND, 20)
    assert expected(it, "b", now) == pytest.approx(2.0)
    assert expected(it, "b", now + 0.5) == pytest.approx(1.5)
    assert expected(it, "b", now + 0.9) is None  # no report for longer than between any two
    assert expected(it, "b", now + 1.1) is None
    it.report(now + 1.2, "a", 12, DEMAND, 8)
    assert expected(it, "b", now + 1.2) == pytest.approx(0.8)


@pytest.mark.parametrize("iterations", [0, 3])
def test_iterations_that_are_not_declared_any_more_are_unknown(iterations: int) -> None:
    it = scheduler("fifo", a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.1, 10)
    it.request(now, "a", 2)
    it.request(now, "b", 1)
    it.report(now, "a", 0, DEMAND, 20)
    it.report(now, "a", iterations, DEMAND, None)
    assert look(it, "a", now).remaining_iterations is None
    assert expected(it, "b", now) is None


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_a_long_wait_by_declared_work_is_unknown_where_less_of_it_goes_first(policy: str) -> None:
    """Under `srtf` each cell that begins meanwhile and declares less is served before it."""
    it = scheduler(policy, a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.5, 2)
    now = runs(it, "b", 1, now, 0.5, 2)
    it.report(now, "a", 0, DEMAND, 30)
    it.report(now, "b", 0, DEMAND, 60)
    it.request(now, "a", 2)
    it.request(now, "b", 2)
    assert expected(it, "b", now) == (None if policy == "srtf" else pytest.approx(15.0))
    it.report(now + 6.0, "a", 12, DEMAND, 18)
    assert expected(it, "b", now + 6.0) == pytest.approx(9.0)


def test_of_several_lanes_none_is_foreseen_once_a_turn_with_an_unknown_end_should_end() -> None:
    it = Scheduler(100 * MB, "fair", Rules(half_life=1e9, running_lanes=2))
    it.open(0.0, "first", SessionSpec("u", demand=DEMAND, priority=1))
    for id in ("unmeasured", "waits"):
        it.open(0.0, id, SessionSpec("u", demand=DEMAND))
    now = runs(it, "first", 1, 1.0, 0.1, 20)
    it.report(now, "first", 0, DEMAND, 50)
    it.request(now, "first", 2)
    it.request(now, "unmeasured", 1)
    it.request(now, "waits", 1)
    assert [one.session for one in it.assign(now + 0.25).yields] == ["unmeasured"]
    assert expected(it, "waits", now + 0.3) is None  # and not when the other lane is free


def test_an_iteration_beyond_all_before_it_is_unknown_at_once() -> None:
    it = scheduler(a="u", b="u")
    now = runs(it, "a", 1, 1.0, 0.4, 10)
    now = runs(it, "b", 1, now, 0.4, 10)
    it.request(now, "a", 2)
    it.request(now, "b", 2)
    it.assign(now + 0.25)
    assert expected(it, "b", now + 0.39) == pytest.approx(0.01)
    for later in (0.41, 1.5, 29.0, 31.0, 32.0):
        it.assign(now + later)
        assert expected(it, "b", now + later) is None


LARGE = Demand(60 * MB, MB)


def paged(it: Scheduler, seconds: float | None) -> float:
    """Sessions `a` and `c` have run; `a` was paged out in `seconds`, unasked if None, and
    is back."""
    it.open(0.0, "c", SessionSpec("u", demand=DEMAND))
    it.open(0.0, "a", SessionSpec("u", demand=LARGE))
    now = runs(it, "c", 1, 1.0, 0.1, 20)
    now = runs(it, "a", 1, now, 0.1, 20)
    it.report(now, "a", 0, LARGE, None)
    it.set_busy(now, "a", False)
    if seconds is not None:
        it.open(now, "b", SessionSpec("u", demand=LARGE))
        assert it.request(now, "b", 1).page_outs == ["a"]
        now += seconds
    it.paged_out(now, "a", LARGE.persistent)
    if seconds is not None:
        it.close(now, "b")
    assert it.set_busy(now, "a", True).page_ins == ["a"]
    assert [grant.session for grant in it.request(now, "a", 2).grants] == ["a"]
    it.request(now, "c", 2)
    return now


@pytest.mark.parametrize("seconds", [3.0, 6.0])
def test_the_wait_includes_paging_in(seconds: float) -> None:
    """The wait is as long as it took to page it out, and then until the first boundary."""
    it = Scheduler(100 * MB, "fair", Rules(half_life=1e9))
    now = paged(it, seconds)
    assert expected(it, "c", now) == pytest.approx(seconds + 0.1)
    it.assign(now + 1.0)
    assert expected(it, "c", now + 1.0) == pytest.approx(seconds + 0.1 - 1.0)
    it.assign(now + seconds + 0.2)
    assert expected(it, "c", now + seconds + 0.2) is None  # longer than that


def test_the_time_to_page_in_is_unknown_before_a_page_out_was_measured() -> None:
    it = Scheduler(100 * MB, "fair", Rules(half_life=1e9))
    now = paged(it, None)
    assert expected(it, "c", now) is None
    it.assign(now + 0.25)
    it.report(now + 1.0, "a", 1, LARGE, None)  # it is back, so its pace is what it was
    it.finish(now + 1.0, "a", 2)
    it.request(now + 1.0, "a", 3)
    for turn in range(2, 50):
        if expected(it, "a", now + turn) is not None:
            break
        it.report(now + turn, "c", 10, DEMAND, None)
    assert expected(it, "a", now + turn) is not None


@tries(30)
@given(
    policy=st.sampled_from(["fair", "fifo", "srtf", "las", "classroom"]),
    loops=st.lists(
        st.tuples(
            st.sampled_from([0.0313, 0.1071, 0.4127, 1.1319]),  # seconds of an iteration
            st.sampled_from(["u", "v"]),
            st.sampled_from([0.5, 1.0, 2.0]),  # weight
            st.sampled_from([40, 200, 10**9]),  # iterations
            st.booleans(),  # whether it declares them
        ),
        min_size=2,
        max_size=5,
    ),
    look=st.floats(20, 30),
)
@example(  # a boundary at just the moment at which a turn is asked to end
    "classroom",
    [(*loop, 10**9, True) for loop in LOOPS],
    25.0,
)
def test_an_estimate_is_the_wait_that_the_same_sessions_then_have_or_at_least_as_long(
    policy: str, loops: list[tuple[float, str, float, int, bool]], look: float
) -> None:
    """This holds where iterations are as they were and no session comes."""
    jobs = [
        Job(f"n{i}", user, "", 0.0, one, cell, weight=weight, demand=DEMAND, declares=declares)
        for i, (one, user, weight, cell, declares) in enumerate(loops)
    ]
    run = Simulation(jobs, policy, rules=Rules(half_life=1e9)).run(until=look)
    said = run.scheduler.snapshot(look).sessions
    had = {job.id: len(job.grants) for job in jobs}
    run.run(until=look + 60.0)
    for state in said:
        grants = run.jobs[state.id].grants[had[state.id] :]
        if state.expected_wait is not None and grants:
            late = grants[0] - look - state.expected_wait
            # an end may shift boundaries by more than the iteration that the bound allows for
            most = max(loop[0] for loop in loops) if state.is_bound else 1e-3
            assert late < most
            assert late > -1e-3 or state.is_bound
    waits = {one.position: one.expected_wait or float("inf") for one in said if one.position}
    assert [waits[place] for place in sorted(waits)] == sorted(waits.values())


def test_a_wait_is_a_bound_where_a_cell_that_comes_first_may_end_at_a_boundary() -> None:
    it = scheduler(a="u", b="u", c="u")
    now = 1.0
    for id in "abc":
        now = runs(it, id, 1, now, 0.1, 10)
    for id in "abc":
        it.request(now, id, 2)
    it.assign(now + 0.25)
    b, c = (look(it, id, now + 0.26) for id in "bc")
    assert (b.expected_wait, b.is_bound) == (pytest.approx(0.04), False)
    assert (c.expected_wait, c.is_bound) == (pytest.approx(0.04 + 0.3 + 0.1), True)
    it.report(now + 0.26, "b", 0, DEMAND, 20)
    assert expected(it, "c", now + 0.26) == pytest.approx(0.04 + 0.3)
