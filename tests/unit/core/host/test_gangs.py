"""Gangs of whole devices in virtual time."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpushare._core import Gang, GangRules

from ..searches import tries

sys.path.append(str(Path(__file__).resolve().parents[4] / "benchmarks"))
from evidence.gangs import GangSimulation

POLICIES = ("gittins", "las", "srsf")
# The published example: devices, seconds. The jobs take 4, 8 and 12 device-seconds in total.
EXAMPLE = [Gang("1", 2, 2), Gang("2", 1, 8), Gang("3", 2, 6)]


def run(
    gangs: Sequence[Gang],
    hosts: Sequence[int] = (2,),
    policy: str = "las",
    rules: GangRules | None = None,
) -> GangSimulation:
    simulation = GangSimulation(gangs, hosts, policy, rules or GangRules())
    simulation.run()
    return simulation


def ended(simulation: GangSimulation) -> list[float]:
    """The ends in the order of the gangs, by their ids."""
    return [simulation.ended[id] for id in sorted(simulation.ended)]


def mean_completion(policy: str, rules: GangRules | None = None) -> float:
    return statistics.fmean(ended(run(EXAMPLE, policy=policy, rules=rules)))


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Gang], list[int]]:
    hosts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    gangs = [
        Gang(
            str(number),
            draw(st.integers(1, sum(hosts))),
            draw(st.integers(1, 200)) / 10,
            arrival=draw(st.integers(0, 300)) / 10,
            skew=draw(st.sampled_from([0.1, 0.7])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    return gangs, hosts


RULES = st.builds(
    GangRules,
    thresholds=st.sampled_from([[], [4.0], [1.0, 10.0]]),
    knob=st.sampled_from([0.0, 0.5, 2.0]),
    tick=st.sampled_from([0.0, 0.7, 1.0]),
    known=st.just([4.0, 8.0, math.inf]),
    quantum=st.sampled_from([4.0, 8.0]),
    start=st.sampled_from([0.0, 0.2]),
    resume=st.sampled_from([0.0, 0.3]),
)


def test_the_published_example_comes_out_exactly() -> None:
    """The authors' simulator never counts the longest known job as one that ends."""
    known = GangRules(known=[4, 8, math.inf], quantum=8)
    assert mean_completion("srsf", known) == 28 / 3
    assert mean_completion("gittins", known) == 10
    assert mean_completion("las", known) == 35 / 3


@pytest.mark.parametrize("quantum", [1, 2, 4, 6, 8, 12, 100])
def test_that_example_is_9_3_where_the_longest_job_is_known_to_end(quantum: float) -> None:
    assert mean_completion("gittins", GangRules(known=[4, 8, 12], quantum=quantum)) == 28 / 3


@pytest.mark.parametrize("policy", ["gittins", "las"])
def test_that_example_is_10_with_two_queues_of_either_policy(policy: str) -> None:
    assert mean_completion(policy, GangRules(thresholds=[4], known=[4, 8, 12], quantum=4)) == 10


@tries(150)
@given(workloads(), st.sampled_from(POLICIES), RULES)
def test_a_gang_has_all_its_devices_or_none_and_no_device_is_granted_twice(
    workload: tuple[list[Gang], list[int]], policy: str, rules: GangRules
) -> None:
    gangs, hosts = workload
    simulation = GangSimulation(gangs, hosts, policy, rules)
    for step in range(100):
        simulation.run(step * 0.9)
        assert simulation.queue.is_valid() == ""
    simulation.run()
    for turn in simulation.turns:
        assert sum(turn.devices) == gangs[int(turn.gang)].devices
        at_once = [t.devices for t in simulation.turns if t.began <= turn.began < t.ended]
        used = [sum(devices) for devices in zip(*at_once, strict=True)]
        assert all(u <= there for u, there in zip(used, hosts, strict=True))
    for number, gang in enumerate(gangs):
        turns = [t.ended - t.began for t in simulation.turns if t.gang == str(number)]
        not_computing = sum(turns) - gang.duration
        assert -1e-4 <= not_computing <= 0.2 + (len(turns) - 1) * 0.3 + 1e-4


@tries(50)
@given(workloads(), st.sampled_from(POLICIES), RULES, st.floats(0, 60))
def test_a_run_continues_where_it_was_stopped(
    workload: tuple[list[Gang], list[int]], policy: str, rules: GangRules, at: float
) -> None:
    stopped = GangSimulation(*workload, policy, rules)
    stopped.run(at)
    assert stopped.now == at
    stopped.run()
    assert stopped.ended == pytest.approx(run(*workload, policy, rules).ended, abs=1e-4)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5))
def test_las_of_equal_jobs_is_round_robin_by_queues(count: int, first: int, rest: int) -> None:
    jobs = [Gang(str(number), 1, first + rest) for number in range(count)]
    simulation = run(jobs, [1], rules=GangRules(thresholds=[first]))
    turns = [(int(turn.gang), turn.ended - turn.began) for turn in simulation.turns]
    if count == 1:
        assert turns == [(0, first + rest)]
        return
    # The last one of the first round is last in the next queue, so the first one goes on.
    assert turns == [(n, first) for n in range(count)] + [(n, rest) for n in range(count)]


def test_a_job_computes_after_it_has_started() -> None:
    gangs = [Gang("a", 1, 3), Gang("b", 1, 3)]
    rules = GangRules(thresholds=[2], start=0.5, resume=1)
    assert ended(run(gangs, [1], rules=rules)) == [7, 9]


def test_las_without_queues_gives_each_a_tick_in_turn() -> None:
    simulation = run([Gang("a", 1, 3), Gang("b", 1, 3)], [1])
    assert [turn.gang for turn in simulation.turns] == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.system
@tries(8)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), min_size=1, max_size=4),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.sampled_from([[3.0], [1.0, 5.0]]),
)
@example([(1, 29), (3, 15), (3, 23), (3, 30)], 0.5, [1.0, 5.0])  # the last one ends at 3004
def test_with_the_knob_all_end_however_many_short_ones_come(
    shapes: list[tuple[int, int]], knob: float, thresholds: list[float]
) -> None:
    """Short ones keep all devices busy, so each round through the first queue is as long as what
    the others have had of it before: the time to the end has a bound, which is no small one."""
    gangs = [Gang(str(number), *shape) for number, shape in enumerate(shapes)]
    bounds = [longest(gang, gangs, knob, thresholds[0]) for gang in gangs]
    shorts = [Gang(f"short {n}", 3, 1, arrival=n) for n in range(math.ceil(max(bounds)))]
    simulation = GangSimulation(
        [*gangs, *shorts], [2, 1], "las", GangRules(thresholds=thresholds, knob=knob)
    )
    simulation.run(max(bounds))
    for gang, bound in zip(gangs, bounds, strict=True):
        assert simulation.ended[gang.id] <= bound + 1e-4


def longest(gang: Gang, gangs: Sequence[Gang], knob: float, threshold: float) -> float:
    """Seconds until it ends beside `gangs` and a short one of 1 s each second.

    Each round it waits in the first queue, at most for all the work there, gets as much service as
    this queue allows, and waits `knob` times as long as it ran.
    """
    to_be_done = sum(each.duration for each in gangs) + 1
    rounds = math.ceil(gang.devices * gang.duration / threshold)
    return rounds * to_be_done + (1 + knob) * gang.duration


@pytest.mark.parametrize(
    ("gang", "rules", "sentence"),
    [
        (Gang("g", 0), {}, "'g' must have a device"),
        (Gang("g", 3), {}, "'g' wants more devices than there are"),
        (Gang("g", 1, 0.0), {}, "'g' must last longer than 0 seconds"),
        (Gang("g", skew=2), {}, "the skew of 'g'"),
        (Gang("g"), {"thresholds": [4, 4]}, "thresholds must be above 0 and rise"),
        (Gang("g"), {"knob": -1}, "the knob"),
        (Gang("g"), {"tick": math.inf}, "the tick"),
        (Gang("g"), {"quantum": 0}, "the quantum"),
        (Gang("g"), {"start": -1}, "starting must take"),
        (Gang("g"), {"resume": -1}, "resuming must take"),
        (Gang("g"), {"known": [0]}, "known service must be above 0"),
    ],
)
def test_a_workload_that_cannot_be_simulated_is_refused(
    gang: Gang, rules: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run([gang], rules=GangRules(**rules))  # type: ignore[arg-type]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="gangs know no policy 'best'"):
        GangSimulation(EXAMPLE, [2], "best")
