"""Two sessions use one lane at once: which may, what memory it takes, and whether it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import (
    LEAST_CHUNK,
    Decision,
    Demand,
    Host,
    Rules,
    SessionSpec,
    chunk_bytes,
)

from ..looks import asked, granted, look, why
from ..plain import GB, Job, Simulation
from ..scheduler import Scheduler

DEMAND = Demand(1, 6)


def scheduler(capacity: int, *ids: str) -> Scheduler:
    """A device on which these sessions are open; two of them may run at once."""
    it = Scheduler(capacity, "fair", Rules(running_lanes=2))
    for id in ids:
        it.open(0, id, SessionSpec("u", demand=DEMAND, shares=True))
    return it


def both(it: Scheduler) -> tuple[Decision, Decision]:
    """`a` and `b` ask for their turns."""
    return it.request(0, "a", 1), it.request(0, "b", 1)


# --- which may ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capacity", "width"), [(8, 6), (11, 9), (13, 11)])
def test_where_memory_is_for_one_lane_two_use_it_at_once_in_all_that_is_left(
    capacity: int, width: int
) -> None:
    it = scheduler(capacity, "a", "b")
    first, second = both(it)
    assert [(grant.session, grant.end) for grant in first.grants] == [("a", -1)]
    assert [(grant.session, grant.end) for grant in second.grants] == [("b", 1)]
    (lane,) = it.snapshot(0).lanes
    assert (lane.holder, lane.beside, lane.width, lane.bytes) == ("a", "b", width, width)
    assert it.snapshot(0).free == capacity - 2 - width
    assert why(look(it, "a", 0)) == "computes beside b"
    assert why(look(it, "b", 0)) == "computes beside a"


def test_a_lane_of_its_own_goes_before_an_end() -> None:
    it = scheduler(14, "a", "b")
    first, second = both(it)
    assert [grant.end for grant in (*first.grants, *second.grants)] == [-1, -1]
    assert len(it.snapshot(0).lanes) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"shares": False},
        {"user": "v"},
        {"domain": "group"},
        {"demand": Demand(1, 6, measured=False)},
        {"alone": True},
    ],
)
def test_none_joins_another_that_may_not(other: dict[str, object]) -> None:
    it = scheduler(8, "a")
    spec = {"user": "u", "demand": DEMAND, "shares": True, **other}
    it.open(0, "b", SessionSpec(**spec))
    _, second = both(it)
    assert granted(second) == []
    assert it.snapshot(0).lanes[0].width == 0


def test_a_trusted_group_shares_lanes_between_its_users() -> None:
    it = scheduler(8)
    for id in "ab":
        it.open(0, id, SessionSpec(id, demand=DEMAND, shares=True, domain="group"))
    _, second = both(it)
    assert granted(second) == ["b"]


# --- turns ----------------------------------------------------------------------------------------


def test_a_third_one_gets_an_end_by_direct_handoff_and_the_width_stays() -> None:
    it = scheduler(12, "a", "b", "c")
    both(it)
    it.request(0, "c", 1)
    (yields,) = it.assign(1).yields
    stays = "b" if yields.session == "a" else "a"
    end = 0 if yields.session == "a" else 1
    assert (yields.successor.session, yields.successor.end) == ("c", end)
    (grant,) = it.finish(1, yields.session, 1).grants
    assert (grant.session, grant.end) == ("c", end)
    (lane,) = it.snapshot(1).lanes
    assert {lane.holder, lane.beside} == {"c", stays}
    assert lane.width == 9


def test_a_newcomer_for_which_the_width_leaves_no_room_is_admitted_when_both_turns_end() -> None:
    it = scheduler(11, "a", "b")
    both(it)
    it.open(1, "new", SessionSpec("v", demand=Demand(3, 6)))
    decision = it.request(1, "new", 1)
    assert why(look(it, "new", 1)).startswith("waits for memory")
    assert sorted(asked(decision)) == ["a", "b"]
    it.finish(1, "a", 1)
    assert granted(it.request(1, "a", 2)) == []
    assert granted(it.finish(1, "b", 1)) == ["new"]


# --- whether it gains -----------------------------------------------------------------------------


@pytest.mark.parametrize(("crowded", "at_once"), [(1.2, 2), (2.3, 1)])
def test_pack_keeps_two_in_one_lane_only_where_that_gains(crowded: float, at_once: int) -> None:
    jobs = [Job(id, shares=True, demand=Demand(GB, 6 * GB)) for id in "ab"]
    run = Simulation(jobs, policy="pack", capacity=9 * GB, crowded=crowded).run(300)
    running = [state.state for state in run.scheduler.snapshot(300).sessions].count("running")
    assert running == at_once
    finding = run.scheduler.snapshot(300).concurrency_tuner
    assert finding.code == ("lanes_gain" if at_once == 2 else "lanes_lost")
    assert finding.count == 2


# --- chunks ---------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 32), st.tuples(st.integers(1, 1 << 32), st.integers(1, 1 << 32)))
def test_a_lane_that_two_use_has_whole_chunks_and_enough_for_each_and_is_within_the_capacity(
    capacity: int, needs: tuple[int, int]
) -> None:
    host = Host([("host", capacity)], "fair", Rules(running_lanes=2), LEAST_CHUNK)
    for id, size in zip("ab", needs, strict=True):
        if size > capacity:
            return
        spec = SessionSpec("u", demand=Demand(0, size), shares=True)
        host.open(0, id, ["host"], spec)
        host.request(0, id, 1)
    (width,) = {host.lane_width("host", lane.id) for lane in host.snapshot("host", 0).lanes} or {0}
    assert host.is_valid() == ""
    if width == 0:
        assert host.end_of("host", "a") == host.end_of("host", "b") == -1
        return
    assert sorted(host.end_of("host", id) for id in "ab") == [0, 1]
    chunk = chunk_bytes(width)
    assert width % chunk == 0
    assert width <= capacity
    assert all(-(-size // chunk) <= width // chunk for size in needs)
