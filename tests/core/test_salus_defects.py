"""Weak points in the code of Salus, the system whose idea this is: one test for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare._core import Demand, Rules, SessionSpec
from jupyter_gpushare._core_testing import Scheduler

GB = 10**9


def spec(persistent: int, ephemeral: int, **more: object) -> SessionSpec:
    return SessionSpec("u", demand=Demand(persistent * GB, ephemeral * GB), **more)


def lane_sizes(it: Scheduler) -> list[int]:
    assert it.is_valid() == ""
    return [lane.bytes // GB for lane in it.snapshot(1e9).lanes]


def test_lanes_grow_shrink_merge_and_close_early() -> None:
    it = Scheduler(16 * GB, "pack", Rules(running_lanes=4))
    it.open(0, "a", spec(1, 4, busy=False))
    it.open(0, "b", spec(1, 6, busy=False))
    assert lane_sizes(it) == [4, 6]
    it.open(0, "c", spec(1, 7, busy=False))  # no third lane: one of the two grows
    assert lane_sizes(it) in ([4, 7], [7, 6])
    it.open(0, "d", spec(3, 8, busy=False))  # only as one lane
    assert lane_sizes(it) == [8]
    it.close(1, "d")
    assert max(lane_sizes(it)) == 7
    it.close(1, "c")
    assert max(lane_sizes(it)) == 6
    it.close(1, "a")
    it.close(1, "b")
    assert lane_sizes(it) == []


def test_each_device_has_a_scheduler_of_its_own() -> None:
    first, second = Scheduler(8 * GB), Scheduler(8 * GB)
    first.open(0, "a", spec(1, 6, waiting=True, turn=1))
    assert second.open(0, "b", spec(1, 6, waiting=True, turn=1)).grants


def test_a_refused_demand_leaks_nothing() -> None:
    it = Scheduler(8 * GB)
    for _ in range(100):
        with pytest.raises(OverflowError):
            it.open(0, "a", spec(4, 5))
    for number in range(100):
        it.open(0, str(number), spec(1, 1))
        it.close(0, str(number))
    assert it.snapshot(0).free == 8 * GB
    assert it.open(0, "b", spec(4, 4, waiting=True, turn=1)).grants


def test_a_dead_client_loses_its_lane() -> None:
    it = Scheduler(8 * GB)
    it.open(0, "dead", spec(1, 6, waiting=True, turn=1))
    it.open(0, "next", spec(1, 6, waiting=True, turn=1))
    assert [grant.session for grant in it.close(1, "dead").grants] == ["next"]


def test_a_newcomer_under_fair_does_not_start_at_zero(
    simulate: Callable, new_job: Callable
) -> None:
    jobs = [new_job("old", user="a"), new_job("new", user="b", start=60)]
    run = simulate(jobs, "fair").run(until=62)
    assert run.jobs["new"].seconds < 1.3


@pytest.mark.parametrize("policy", ["srtf", "fifo"])
def test_a_chosen_session_with_nothing_to_run_does_not_idle_the_lane(policy: str) -> None:
    it = Scheduler(8 * GB, policy)
    it.open(0, "first", spec(1, 2, remaining_iterations=1, iterations=1, device_seconds=0.1))
    it.open(0, "second", spec(1, 2))
    assert it.request(0, "second", 1).grants


def test_a_session_that_overruns_its_declaration_is_not_first_for_ever() -> None:
    it = Scheduler(8 * GB, "srtf")
    past = {"device_seconds": 50.0, "iterations": 500}
    it.open(0, "liar", spec(1, 2, remaining_iterations=10, waiting=True, turn=1, **past))
    honest = spec(1, 2, remaining_iterations=100, waiting=True, turn=1, **past)
    it.open(0, "honest", honest)  # 10 s of work, where the other one declared 1 s
    assert it.snapshot(0.5).sessions[0].state == "running"
    due = it.next_event(0.5)
    assert due == pytest.approx(1.0, abs=0.01)
    assert [asked.session for asked in it.assign(due).yields] == ["liar"]
    it.finish(due, "liar", 1)
    it.request(due, "liar", 2)
    states = {state.id: state.state for state in it.snapshot(due).sessions}
    assert states == {"liar": "waiting", "honest": "running"}


def test_an_undeclared_demand_is_not_counted_as_the_whole_device() -> None:
    it = Scheduler(8 * GB)
    it.open(0, "known", spec(2, 4))
    it.open(0, "unknown", SessionSpec("u", demand=Demand(0, 0, measured=False)))
    it.open(0, "other", spec(1, 4))
    assert it.snapshot(0).free == 1 * GB
    assert it.request(0, "unknown", 1).grants


def test_backfill_past_a_large_session_that_waits_is_bounded() -> None:
    it = Scheduler(8 * GB, rules=Rules(aging=30))
    it.open(0, "a", spec(3, 1))
    it.open(0, "large", spec(4, 3, waiting=True, turn=1))
    it.open(29, "early", spec(1, 1))
    it.open(31, "late", spec(1, 1))
    lanes = {state.id: state.lane for state in it.snapshot(31).sessions}
    assert lanes["early"] is not None
    assert lanes["late"] is None


def test_memory_is_learned_while_running() -> None:
    it = Scheduler(8 * GB)
    unknown = SessionSpec("u", demand=Demand(0, 0, measured=False), waiting=True, turn=1)
    it.open(0, "a", unknown)
    it.report(1, "a", 1, Demand(2 * GB, 3 * GB))
    assert lane_sizes(it) == [3]
    assert it.snapshot(1).persistent == 2 * GB
