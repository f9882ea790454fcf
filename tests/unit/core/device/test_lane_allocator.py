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
TABLE = Path(__file__).parents[3] / "data" / "salus_mem_baseline.csv"


def memory_table() -> dict[str, tuple[float, float]]:
    """Persistent and ephemeral MB of each job of the table."""
    with TABLE.open() as file:
        return {
            row["Network"]: (float(row["Persistent Mem (MB)"]), float(row["Peak"]))
            for row in csv.DictReader(file)
        }


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
