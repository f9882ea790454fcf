"""Which lane a session gets: the safety rule holds, and lanes follow their members."""

from __future__ import annotations

import csv
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import Demand
from jupyter_gpushare._core_testing import LaneAllocator

MB = 2**20  # the unit of the table
GB = 2**30
TABLE = Path(__file__).parent.parent / "data" / "salus_mem_baseline.csv"


def memory_table() -> dict[str, tuple[float, float]]:
    """Persistent and ephemeral MB of each job of the table."""
    with TABLE.open() as file:
        return {
            row["Network"]: (float(row["Persistent Mem (MB)"]), float(row["Peak"]))
            for row in csv.DictReader(file)
        }


def sizes(lanes: LaneAllocator) -> list[int]:
    return sorted(lane.bytes for lane in lanes.lanes())


def test_the_first_session_opens_a_lane_of_its_size() -> None:
    lanes = LaneAllocator(10)
    lane = lanes.place("a", Demand(1, 4))
    assert [(state.id, state.bytes, state.members) for state in lanes.lanes()] == [(lane, 4, ["a"])]
    assert lanes.used == 5


def test_parallel_lanes_open_while_they_fit_and_then_are_shared() -> None:
    lanes = LaneAllocator(12)
    first = lanes.place("a", Demand(1, 5))
    assert lanes.place("b", Demand(1, 4)) != first
    assert sizes(lanes) == [4, 5]
    assert lanes.place("c", Demand(1, 5)) == first
    assert lanes.used == 12


def test_the_smallest_lane_that_can_grows_for_a_larger_member() -> None:
    lanes = LaneAllocator(20)
    lanes.place("large", Demand(0, 10))
    small = lanes.place("small", Demand(0, 5))
    # it joins the one that is large enough
    assert lanes.place("more", Demand(1, 6), max_lanes=2) != small
    lanes.remove("large")
    lanes.remove("more")
    lanes.place("large", Demand(0, 10))
    assert lanes.place("largest", Demand(0, 12), max_lanes=2) != small  # 5 -> 12 would not fit
    assert sizes(lanes) == [5, 12]


def test_lanes_merge_when_that_frees_memory() -> None:
    lanes = LaneAllocator(12)
    lanes.place("a", Demand(1, 5))
    lanes.place("b", Demand(1, 4))
    assert lanes.place("c", Demand(3, 5)) is not None  # 1 + 1 + 3 + 5
    assert sizes(lanes) == [5]
    assert lanes.used == 10


def test_a_lane_shrinks_and_closes_with_its_members() -> None:
    lanes = LaneAllocator(12)
    lanes.place("a", Demand(1, 8), max_lanes=1)
    lanes.place("b", Demand(1, 3), max_lanes=1)
    lanes.remove("a")
    assert sizes(lanes) == [3]
    lanes.remove("b")
    assert lanes.lanes() == []
    assert lanes.used == 0


def test_a_session_that_does_not_fit_waits_and_changes_nothing() -> None:
    lanes = LaneAllocator(10)
    lanes.place("a", Demand(4, 4))
    assert lanes.place("b", Demand(3, 1)) is None
    assert lanes.place("b", Demand(1, 6)) is None
    assert lanes.used == 8
    assert lanes.is_valid() == ""


def test_resize_grows_merges_shrinks_or_refuses_without_change() -> None:
    lanes = LaneAllocator(12)
    lanes.place("a", Demand(1, 5))
    lanes.place("b", Demand(1, 5))
    assert lanes.resize("a", Demand(1, 10))  # only as one lane
    assert sizes(lanes) == [10]
    assert not lanes.resize("b", Demand(2, 10))
    assert sizes(lanes) == [10]
    assert lanes.resize("a", Demand(1, 2))
    assert sizes(lanes) == [5]


def test_two_jobs_that_would_deadlock_share_one_lane() -> None:
    lanes = LaneAllocator(12 * GB)
    first = lanes.place("a", Demand(1 * GB, 7 * GB))
    assert lanes.place("b", Demand(1 * GB, 7 * GB)) == first
    assert lanes.used == 9 * GB


def test_42_inference_sessions_fit_one_card_of_16_gb() -> None:
    models = {name: row for name, row in memory_table().items() if name.endswith("eval_1")}
    assert len(models) == 14
    lanes = LaneAllocator(16 * GB)
    for name, (persistent, ephemeral) in models.items():
        demand = Demand(round(1.1 * persistent * MB), round(ephemeral * MB))
        for copy in range(3):
            assert lanes.place(f"{name}-{copy}", demand, max_lanes=1) is not None
    assert len(lanes.lanes()) == 1
    assert len(lanes.lanes()[0].members) == 42
    assert lanes.used == pytest.approx(14.0 * GB, rel=0.01)


@pytest.mark.parametrize(
    ("job", "lanes_expected"), [("vae_64", 574), ("superres_128", 14), ("resnet50_50", 2)]
)
def test_hyper_parameter_packing_gives_exactly_this_number_of_lanes(
    job: str, lanes_expected: int
) -> None:
    persistent, ephemeral = memory_table()[job]
    padded = persistent * 1.1
    total = (padded + ephemeral) * 1.05
    demand = Demand(round(padded * MB), round((total - padded) * MB))
    lanes = LaneAllocator(15_700 * MB)
    for number in count():
        before = len(lanes.lanes())
        if lanes.place(str(number), demand) is None or len(lanes.lanes()) <= before:
            break
    assert before == lanes_expected


def test_a_session_is_placed_once() -> None:
    lanes = LaneAllocator(10)
    lanes.place("a", Demand(1, 1))
    with pytest.raises(ValueError, match="'a' has a place already"):
        lanes.place("a", Demand(1, 1))
    with pytest.raises(KeyError, match="'b' has no place"):
        lanes.remove("b")
    with pytest.raises(ValueError, match="negative"):
        lanes.place("b", Demand(-1, 0))


demands = st.builds(Demand, st.integers(0, 12), st.integers(0, 40))
steps = st.tuples(st.sampled_from(["place", "resize", "remove"]), st.integers(0, 9), demands)


@given(st.lists(st.tuples(steps, st.integers(0, 4)), max_size=60))
def test_the_safety_rule_holds_and_no_session_that_fits_is_refused(
    path: list[tuple[tuple[str, int, Demand], int]],
) -> None:
    """It is compared with a count by the test: without holders, a session that fits into one lane
    is never refused."""
    lanes, members = LaneAllocator(100), dict[str, Demand]()

    def fits(others: list[Demand], demand: Demand) -> bool:
        everyone = [*others, demand]
        return sum(d.persistent for d in everyone) + max(d.ephemeral for d in everyone) <= 100

    for (step, number, demand), max_lanes in path:
        id = str(number)
        others = [d for other, d in members.items() if other != id]
        if step == "place" and id not in members:
            placed = lanes.place(id, demand, max_lanes) is not None
            assert placed == fits(others, demand)
            if placed:
                members[id] = demand
        elif step == "resize" and id in members:
            if lanes.resize(id, demand):
                members[id] = demand
            else:
                assert not fits(others, demand)
        elif step == "remove" and id in members:
            lanes.remove(id)
            del members[id]
        used = sum(d.persistent for d in members.values()) + sum(
            max(members[id].ephemeral for id in lane.members) for lane in lanes.lanes()
        )
        assert used == lanes.used <= 100
        assert sorted(id for lane in lanes.lanes() for id in lane.members) == sorted(members)
        assert lanes.is_valid() == ""
