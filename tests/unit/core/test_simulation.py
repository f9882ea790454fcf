"""The simulation in C++: equal to stepping each iteration, and to a plain one in Python."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import (
    Cell,
    Conduct,
    Demand,
    Job,
    Rules,
    Shares,
    Simulation,
    SqueezeOption,
    policies,
)
from jupyter_gpushare._core_testing import paged as bytes_paged

from . import plain
from .searches import tries

POLICIES = [name for name, _ in policies()]
GB = 10**9
GIB = 1 << 30
CHECKED = Conduct(checks=True)
TWO_LANES = Rules(running_lanes=2)


# Parts of its peak that an iteration has of its lane.
RISES_AND_FALLS = [0.1, 0.4, 0.7, 1.0, 0.7, 0.4, 0.1]
STAYS = [1.0]


def of(demand: Demand, parts: list[float]) -> list[int]:
    return [int(part * demand.ephemeral) for part in parts]


def job(id: str, iterations: int = 100, iteration: float = 0.05, **more: object) -> Job:
    return Job(id, [Cell(iterations, iteration)], **{"demand": Demand(GB, GB), **more})


def run(jobs: list[Job], policy: str = "fair", capacity: int = 16 * GB, **more: object):
    simulation = Simulation(jobs, capacity, policy, **{"conduct": CHECKED, **more})
    simulation.run()
    return simulation


def ended(simulation: Simulation) -> dict[str, float | None]:
    return {outcome.id: outcome.ended for outcome in simulation.outcomes}


def figures(simulation: Simulation) -> list[tuple[object, ...]]:
    """Return all results, as plain values."""
    names = ("id", "started", "ended", "waited", "device_seconds", "iterations", "refused")
    return [
        *((*(getattr(o, name) for name in names), bytes_paged(o)) for o in simulation.outcomes),
        *((t.job, t.device, t.lane, t.began, t.ended) for t in simulation.turns),
        *((m.time, m.device, m.persistent, m.lanes) for m in simulation.memory),
    ]


cells = st.builds(
    Cell,
    st.integers(1, 60),
    st.floats(0.005, 1.0) | st.sampled_from([0.125, 0.25]),
    st.sampled_from([0.0, 0.1, 2.0]),
)
demands = st.builds(
    lambda persistent, ephemeral, measured: Demand(persistent * GB, ephemeral * GB, measured),
    st.integers(1, 5),
    st.integers(1, 10),
    st.booleans(),
) | st.builds(
    lambda persistent, ephemeral: squeezable(persistent * GB, ephemeral * GB),
    st.integers(1, 5),
    st.integers(1, 20),
)


def squeezable(persistent: int, ephemeral: int) -> Demand:
    options = [
        SqueezeOption(int(part * ephemeral), slowdown)
        for part, slowdown in ((1, 1.0), (0.6, 1.05), (0.3, 1.25))
    ]
    return Demand(persistent, ephemeral, options=options)


@st.composite
def notebooks(draw: st.DrawFn) -> list[Job]:
    wanted = draw(st.lists(demands, min_size=1, max_size=6))
    return [
        Job(
            f"j{number}",
            draw(st.lists(cells, min_size=1, max_size=3)),
            demand=demand,
            curve=draw(st.sampled_from([[], RISES_AND_FALLS, STAYS]).map(partial(of, demand))),
            user=draw(st.sampled_from("ab")),
            arrival=draw(st.floats(0, 5) | st.just(0.0)),
            weight=draw(st.sampled_from([1.0, 2.0])),
            priority=draw(st.sampled_from([0, 0, 1])),
            declares=draw(st.booleans()),
            load=draw(st.sampled_from([1.0, 0.4])),
            stays=draw(st.sampled_from([0.0, 3.0, float("inf")])),
            devices=draw(st.sampled_from([1, 1, 1, 2])),
        )
        for number, demand in enumerate(wanted)
    ]


@pytest.mark.system
@tries(100)
@given(
    notebooks(),
    st.sampled_from(POLICIES),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0.0, 2.0 * GB]),
    st.sampled_from([0.0, 0.01]),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
)
def test_skipping_boundaries_is_equal_to_stepping_each(
    jobs: list[Job],
    policy: str,
    lanes: int,
    rate: float,
    handover: float,
    devices: int,
    swaps: bool,
    contention: float,
) -> None:
    devices = max([devices, *(each.devices for each in jobs)])

    def simulated(steps: bool) -> Simulation:
        conduct = Conduct(
            paging_rate=rate, handover=handover, contention=contention, steps=steps, checks=True
        )
        rules = Rules(running_lanes=lanes, aging=5, page_waiting=swaps)
        simulation = Simulation(jobs, 16 * GB, policy, rules, conduct, devices)
        simulation.run(10_000)
        return simulation

    assert figures(simulated(steps=False)) == figures(simulated(steps=True))


def test_a_session_that_others_page_out_for_holds_up_no_third_one() -> None:
    """The device has to drain for it until they are asked; then another one may start beside it."""
    thinks = 10.0
    jobs = [
        Job("a", [Cell(57, 0.05), Cell(52, 0.01, thinks)], demand=Demand(106, 715, False)),
        Job("b", [Cell(34, 0.357, thinks)], demand=Demand(31, 401)),
        Job("c", [Cell(24, 0.125, thinks)], demand=Demand(96, 52, False)),
        Job("d", [Cell(46, 0.25)], demand=Demand(148, 274), arrival=6.96, priority=1),
    ]
    rules = Rules(running_lanes=2, aging=2, page_waiting=True)
    conduct = Conduct(paging_rate=100, checks=True)
    run(jobs, "classroom", capacity=1000, rules=rules, conduct=conduct)


@tries(25)
@given(st.data())
@pytest.mark.parametrize("policy", ["fifo", "srtf", "las"])
def test_it_is_equal_to_the_plain_simulation(policy: str, data: st.DataObject) -> None:
    """It holds for jobs of one user whose cells are all alike, with a report at each boundary and
    lanes that do not slow each other down. No two events happen at one time, where each simulation
    has an order of its own; and among one user's jobs these policies lift no clocks to those of
    others, where a rounding error may decide which is first."""
    notebooks = [
        plain.Job(
            f"j{number}",
            start=data.draw(st.integers(0, 90)) / 10 + prime**0.5 / 100,
            iteration=data.draw(st.integers(1, 90)) / 100 + prime**0.5 / 1000,
            cell=data.draw(st.integers(1, 40)),
            cells=data.draw(st.integers(1, 3)),
            think=data.draw(st.integers(0, 30)) / 10 + prime**0.5 / 200,
            weight=data.draw(st.sampled_from([1.0, 2.0])),
            declares=data.draw(st.booleans()),
        )
        for number, prime in enumerate([2, 3, 5, 7, 11][: data.draw(st.integers(1, 5))])
    ]
    jobs = [
        Job(
            each.id,
            [
                Cell(each.cell, each.iteration, each.think if number else 0)
                for number in range(each.cells)
            ],
            demand=each.demand,
            user=each.user,
            arrival=each.start,
            weight=each.weight,
            declares=each.declares,
            load=0.1,
            stays=float("inf"),
        )
        for each in notebooks
    ]
    expected = plain.Simulation(notebooks, policy).run(10_000).jobs
    found = run(jobs, policy, conduct=Conduct(report=0, checks=True))
    for outcome in found.outcomes:
        assert outcome.ended == pytest.approx(expected[outcome.id].done_at, abs=1e-6)
        assert outcome.device_seconds == pytest.approx(expected[outcome.id].seconds, abs=1e-6)
        assert outcome.started == pytest.approx(expected[outcome.id].grants[0], abs=1e-6)


rules = st.builds(
    Rules,
    quantum=st.sampled_from([0.05, 0.25, 2.0]),
    half_life=st.sampled_from([10.0, 3600.0]),
    lease=st.sampled_from([0.5, 30.0]),
    aging=st.sampled_from([0.0, 2.0, 60.0]),
    boost=st.sampled_from([0.0, 1.0]),
    running_lanes=st.integers(0, 3),
    page_waiting=st.booleans(),
    squeeze=st.booleans(),
)
conducts = st.fixed_dictionaries(
    {
        "report": st.sampled_from([0.0, 0.5]),
        "handover": st.sampled_from([0.0, 0.01]),
        "paging_rate": st.sampled_from([0.0, 2.0 * GB]),
        "contention": st.sampled_from([0.0, 0.2]),
        "checks": st.just(True),
    }
)
groups = st.sampled_from(["", "a", "b"])


@st.composite
def crowds(draw: st.DrawFn) -> list[Job]:
    """Up to a dozen jobs on small devices, of users in groups; some leave at once, some never."""
    return [
        Job(
            f"j{number}",
            draw(st.lists(cells, min_size=1, max_size=4)),
            demand=draw(demands),
            user=draw(st.sampled_from("abc")),
            group=draw(groups),
            arrival=draw(st.floats(0, 20) | st.just(0.0)),
            weight=draw(st.sampled_from([0.5, 1.0, 4.0])),
            priority=draw(st.sampled_from([0, 0, 0, 1, -1])),
            declares=draw(st.booleans()),
            load=draw(st.sampled_from([1.0, 0.4, 0.1])),
            stays=draw(st.sampled_from([0.0, 3.0, float("inf")])),
            devices=draw(st.sampled_from([1, 1, 1, 2, 3])),
        )
        for number in range(draw(st.integers(1, 12)))
    ]


@pytest.mark.system
@pytest.mark.timeout(1800)
@tries(50)
@given(crowds(), st.sampled_from(POLICIES), rules, conducts, st.integers(0, 2), groups)
def test_no_simulation_breaks_an_invariant(
    jobs: list[Job], policy: str, rules: Rules, conduct: dict[str, Any], more: int, class_of: str
) -> None:
    """The simulation itself checks that the invariants hold after each event. In its results,
    memory suffices, a lane is used in turn, and each job that its devices can hold ends if the
    others leave. A job that a class throttles and that cannot be paged out keeps its memory, so the
    class may wait for it; so does a gang, wherever the others can be."""
    devices = max(each.devices for each in jobs) + more
    shares = Shares(class_of=class_of)
    done = run(
        jobs, policy, rules=rules, conduct=Conduct(**conduct), devices=devices, shares=shares
    )
    assert all(use.persistent + use.lanes <= 16 * GB for use in done.memory)
    used = sorted((one.device, one.lane, one.began, one.ended) for one in done.turns)
    assert all(before[:2] != after[:2] or before[3] <= after[2] for before, after in pairwise(used))
    may_be_throttled = [each for each in jobs if class_of and each.group != class_of]
    keep_memory = [each for each in may_be_throttled if each.devices > 1]
    leave_room = not (keep_memory if conduct["paging_rate"] else may_be_throttled)
    if leave_room and all(each.stays < float("inf") for each in jobs):
        assert [one.id for one in done.outcomes if one.ended is None and not one.refused] == []


@pytest.mark.parametrize(
    ("load", "contention", "seconds"),
    [(1.0, 0, 20), (0.5, 0, 10), (0.75, 0, 15), (0.5, 0.2, 12.5)],
)
def test_jobs_that_compute_at_once_share_the_device_and_disturb_each_other(
    load: float, contention: float, seconds: float
) -> None:
    jobs = [job(id, 100, 0.1, load=load, user=id) for id in "ab"]
    conduct = Conduct(contention=contention, checks=True)
    simulation = run(jobs, "pack", rules=TWO_LANES, conduct=conduct)
    assert list(ended(simulation).values()) == [pytest.approx(seconds)] * 2


def test_a_job_that_computes_alone_again_is_as_fast_as_before() -> None:
    jobs = [job("short", 50, 0.1, user="a"), job("long", 100, 0.1, user="b")]
    simulation = run(jobs, "pack", rules=TWO_LANES)
    assert ended(simulation) == {"short": pytest.approx(10), "long": pytest.approx(15)}


MANY = [
    job(f"j{n}", 100, 0.1, demand=Demand(GB // 2, 6 * GB), load=0.5, user=f"{n}") for n in range(16)
]


def test_pack_finds_out_that_two_lanes_gain_before_it_admits_more() -> None:
    packed = run(MANY, "pack", rules=Rules(aging=float("inf")))
    assert max(ended(packed).values()) < 0.6 * 16 * 10


def test_a_job_that_pauses_is_paged_out_for_one_that_needs_the_memory() -> None:
    thinker = Job(
        "thinker", [Cell(10, 0.1), Cell(10, 0.1, think=100)], demand=Demand(6 * GB, 2 * GB)
    )
    worker = job("worker", 100, 0.1, arrival=10, demand=Demand(7 * GB, 2 * GB))
    without = run([thinker, worker], capacity=10 * GB)
    paged = run(
        [thinker, worker], capacity=10 * GB, conduct=Conduct(paging_rate=2.0 * GB, checks=True)
    )
    assert ended(without)["worker"] > 100
    assert ended(paged)["worker"] == pytest.approx(10 + 3 + 10)
    assert ended(paged)["thinker"] == pytest.approx(101 + 3 + 1)
    assert bytes_paged(paged.outcomes[0]) == 12 * GB


def test_a_squeezed_job_is_slower_until_memory_comes_free() -> None:
    """It needs 5 s alone. Another job leaves it too little from the first second to the third."""
    other = job("other", 20, 0.05, demand=Demand(4 * GB, GB), stays=2)
    squeezed = job("squeezed", 100, 0.05, demand=squeezable(GB, 8 * GB))
    simulation = run([other, squeezed], "fifo", capacity=10 * GB)
    assert ended(simulation)["squeezed"] == pytest.approx(3 + 5 - 2 / 1.05)


def test_a_context_switch_takes_its_time() -> None:
    jobs = [job(id, 10, 0.1) for id in "ab"]
    assert ended(run(jobs, "fifo", conduct=Conduct(handover=0.5))) == {
        "a": pytest.approx(1.5),
        "b": pytest.approx(3.0),
    }


def test_jobs_spread_over_devices() -> None:
    jobs = [job(id, 100, 0.1) for id in "abc"]
    simulation = run(jobs, "fifo", devices=3)
    assert list(ended(simulation).values()) == [pytest.approx(10)] * 3
    assert {turn.device for turn in simulation.turns} == {0, 1, 2}


def test_a_job_that_fits_no_device_is_refused_and_delays_no_other() -> None:
    simulation = run([job("large", demand=Demand(GB, 16 * GB)), job("small")])
    assert [outcome.refused for outcome in simulation.outcomes] == [True, False]
    assert ended(simulation) == {"large": None, "small": pytest.approx(5)}


def test_a_run_continues_where_it_was_stopped() -> None:
    jobs = [job(id, 100, 0.1, user=id) for id in "ab"]
    stopped = Simulation(jobs, 16 * GB)
    stopped.run(7.03)
    used = [outcome.device_seconds for outcome in stopped.outcomes]
    assert sum(used) == pytest.approx(7.03)
    assert stopped.iterations == 70
    stopped.run()
    assert figures(stopped) == figures(run(jobs))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"cells": []}, "'j' has no cells"),
        ({"cells": [Cell(0)]}, "must have iterations"),
        ({"cells": [Cell(1, 0.0)]}, "longer than 0 seconds"),
        ({"load": 0.0}, "the load of 'j'"),
        ({"arrival": float("nan")}, "the arrival of 'j'"),
        ({"devices": 0}, "'j' must have a device, and at most the 2"),
        ({"devices": 3}, "'j' must have a device, and at most the 2"),
        ({"id": "other"}, "two jobs are called 'other'"),
    ],
)
def test_a_workload_that_cannot_be_simulated_is_refused(
    wrong: dict[str, object], sentence: str
) -> None:
    jobs = [Job("other", [Cell()]), Job(**{"id": "j", "cells": [Cell()], **wrong})]
    with pytest.raises(ValueError, match=sentence):
        Simulation(jobs, GB, devices=2)


# --- two in one lane ------------------------------------------------------------------------------


def pair(parts: list[float], capacity: float, load: float = 0.5, **more: object) -> float:
    """Return the seconds of two jobs that each take 10 alone, on a device with room for this many
    of their iterations."""
    demand = Demand(0, GIB)
    jobs = [
        job(id, demand=demand, iteration=0.1, user="u", load=load, curve=of(demand, parts))
        for id in "ab"
    ]
    simulation = run(jobs, capacity=int(capacity * GIB), rules=TWO_LANES, **more)
    return max(end or 0.0 for end in ended(simulation).values())


def test_two_that_use_one_lane_at_once_are_done_sooner_where_they_rise_and_fall() -> None:
    assert pair([], 1.2) == pytest.approx(20)  # unknown: they take turns
    assert pair([], 2) == pytest.approx(10)
    times = [pair(RISES_AND_FALLS, capacity) for capacity in (1.0, 1.2, 1.5, 2.0)]
    assert times == sorted(times, reverse=True)
    assert 11 < times[0] < 15
    assert times[-1] == pytest.approx(10)


@pytest.mark.parametrize("part", [-0.1, 1.1])
def test_a_curve_is_from_nothing_to_the_demand(part: float) -> None:
    with pytest.raises(ValueError, match="the curve of 'a' must be from 0 to its ephemeral bytes"):
        pair([part], 2)
