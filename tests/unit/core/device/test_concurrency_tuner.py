"""Several lanes at once are kept only while they gain, and the cost of knowing it is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import (
    Cell,
    Conduct,
    Demand,
    Job,
    Reason,
    Rules,
    Simulation,
    SqueezeOption,
)
from jupyter_gpushare._core_testing import ConcurrencyTuner
from jupyter_gpushare.reasons import sentence

from .. import plain
from ..searches import tries

GB = 10**9
QUANTUM, REPORT = 0.25, 0.5
STEP = 1 / 64


@dataclass
class Worker:
    """Iterates forever, and reports at a boundary each half second."""

    iteration: float
    progress: float = 0.0
    reported: int = 0
    used: float = 0.0  # since the last report
    next_report: float = 0.0


class Machine:
    """Any number of workers in turns of one quantum, as many at once as the tuner says.

    `sums` is what the tuner has to find out: the weighted speedup of each number of lanes at once.
    One lane alone has 1.
    """

    def __init__(self, sums: Mapping[int, float], iterations: Sequence[float]) -> None:
        self.sums = dict(sums)
        self.workers = {number + 1: Worker(each) for number, each in enumerate(iterations)}
        self.tuner = ConcurrencyTuner(QUANTUM)
        self.now = self.work = 0.0
        self.seen: list[int] = []  # lanes, whenever they changed
        self.opened: list[float] = []  # when a second one was opened

    def sum(self, lanes: int) -> float:
        return 1.0 if lanes == 1 else self.sums[max(each for each in self.sums if each <= lanes)]

    def run(self, seconds: float) -> Machine:
        """The front of the queue runs, as many at once as there are lanes, and goes to its end
        after a turn."""
        for _ in range(round(seconds / STEP)):
            self.step()
        return self

    def step(self) -> None:
        self.tuner.follow(self.now, list(self.workers))
        assert (self.tuner.next_event() or self.now + 1) > self.now, "it is always to come"
        if self.seen[-1:] != [self.tuner.lanes]:
            if self.seen[-1:] == [1]:
                self.opened.append(self.now)
            self.seen.append(self.tuner.lanes)
        running = list(self.workers.items())[: self.tuner.lanes]
        self.tuner.runs(self.now, len(running))
        self.now += STEP
        self.work += STEP * self.sum(len(running))
        for number, worker in running:
            self.compute(number, worker, STEP * self.sum(len(running)) / len(running))
        if self.now % QUANTUM < STEP and len(running) < len(self.workers):
            for number, worker in running:
                del self.workers[number]
                self.workers[number] = worker

    def compute(self, number: int, worker: Worker, seconds: float) -> None:
        before = worker.progress
        worker.progress += seconds / worker.iteration
        worker.used += STEP
        if int(worker.progress) > int(before) and self.now >= worker.next_report:
            done = int(worker.progress) - worker.reported
            self.tuner.report(self.now, number, done, worker.used)
            worker.reported += done
            worker.used = 0.0
            worker.next_report = self.now + REPORT


def says(finding: Reason | None, code: str, percent: int) -> bool:
    """Whether it says this of two lanes at once, within a percentage point: the machine moves in
    steps, and reports end in the middle of one."""
    assert finding is not None
    return (finding.code, finding.count) == (code, 2) and abs(finding.percent - percent) <= 1


def machine(sums: Mapping[int, float], count: int = 2) -> Machine:
    return Machine(sums, [4 * STEP] * count)


def test_a_lone_session_is_not_probed() -> None:
    alone = machine({2: 2.0}, 1).run(20)
    assert alone.seen == [1]
    assert (alone.tuner.finding, alone.tuner.next_event()) == (None, None)


def test_a_second_lane_that_gains_is_kept() -> None:
    pair = machine({2: 1.8}).run(30)
    assert pair.tuner.lanes == pair.tuner.hoped == 2
    assert says(pair.tuner.finding, "lanes_gain", 80)


def test_few_turns_of_each_alone_are_enough() -> None:
    [opened] = machine({2: 1.8}).run(5).opened
    assert opened <= 6 * QUANTUM


@pytest.mark.parametrize(
    ("sum", "seconds", "code", "percent"),
    [(0.88, 20, "lanes_lost", 12), (1.01, 12, "lanes_gain_little", 1)],
)
def test_a_second_lane_that_loses_or_gains_next_to_nothing_is_closed(
    sum: float, seconds: float, code: str, percent: int
) -> None:
    pair = machine({2: sum}).run(seconds)
    assert pair.seen == [1, 2, 1]
    assert pair.tuner.hoped == 1
    assert says(pair.tuner.finding, code, percent)


@pytest.mark.parametrize(
    ("sums", "notebooks", "lanes"),
    [
        ({2: 1.8, 4: 2.4, 8: 2.3}, 8, [1, 2, 4, 8, 4]),
        ({2: 1.8, 4: 1.7, 8: 5.0}, 8, [1, 2, 4, 2]),
        ({2: 2.0, 4: 4.0, 8: 8.0}, 8, [1, 2, 4, 8]),
        ({2: 2.0, 3: 2.9}, 3, [1, 2, 3]),  # and no more than there are notebooks
    ],
)
def test_it_opens_lanes_while_the_weighted_speedup_grows(
    sums: dict[int, float], notebooks: int, lanes: list[int]
) -> None:
    assert machine(sums, notebooks).run(60).seen == lanes


def test_a_lane_that_ceases_to_gain_is_closed() -> None:
    pair = machine({2: 1.8}).run(30)
    pair.sums[2] = 0.8
    pair.run(60)
    assert pair.seen[-2:] == [2, 1]
    assert says(pair.tuner.finding, "lanes_lost", 20)


def test_a_lane_that_begins_to_gain_is_opened_by_the_next_probe() -> None:
    pair = machine({2: 0.8}).run(30)
    pair.sums[2] = 1.8
    pair.run(200)
    assert pair.seen[-1] == 2


def test_a_changed_mix_is_probed_before_one_with_the_same_result_twice() -> None:
    def trials(changes: bool) -> int:
        pair = machine({2: 0.8, 3: 0.8}).run(400)
        before = len(pair.seen)
        if changes:
            pair.workers[3] = Worker(0.1)
        return len(pair.run(60).seen) - before

    assert trials(changes=True) > trials(changes=False)


def test_probes_of_the_same_mix_become_rare() -> None:
    gaps = [b - a for a, b in pairwise(machine({2: 0.8}).run(1500).opened)]
    assert len(gaps) > 2
    assert all(b > 1.5 * a for a, b in pairwise(gaps))


def test_a_session_without_iterations_is_not_believed_to_gain() -> None:
    pair = Machine({2: 1.8}, [1e9, 1e9]).run(15)
    assert pair.tuner.lanes == 1
    assert pair.tuner.finding.code == "lanes_unseen"


def test_a_session_whose_work_changes_is_measured_anew() -> None:
    """Iterations that are faster in company than alone are other ones, and tell nothing of
    a gain."""
    pair = machine({2: 1.8}).run(30)
    for worker in pair.workers.values():
        worker.iteration, worker.progress = 0.02, float(worker.reported)
    pair.sums[2] = 0.7
    pair.run(400)
    assert says(pair.tuner.finding, "lanes_lost", 30)


@pytest.mark.system
@tries(8)
@given(
    st.floats(0.5, 2.0), st.lists(st.sampled_from([0.03, 0.1, 0.4, 1.1]), min_size=2, max_size=3)
)
def test_at_most_three_percent_are_lost_by_not_knowing(sum: float, iterations: list[float]) -> None:
    found = Machine({2: sum, 3: min(sum, 1.0)}, iterations).run(600)
    assert found.work >= 0.97 * max(1.0, sum) * 600


# --- with the scheduler, in virtual time ------------------------------------------------------


def job(id: str, load: float, iterations: int = 3000, **more: object) -> Job:
    return Job(id, [Cell(iterations, 0.1)], demand=Demand(GB, GB), user=id, load=load, **more)


def makespan(jobs: list[Job], lanes: int, contention: float) -> float:
    conduct = Conduct(contention=contention, checks=True, remembers_turns=False)
    simulation = Simulation(jobs, 16 * GB, "pack", Rules(running_lanes=lanes), conduct)
    simulation.run()
    return max(outcome.ended or 0 for outcome in simulation.outcomes)


@pytest.mark.system
@tries(25)
@given(st.floats(0.2, 1.0), st.floats(0.2, 1.0), st.floats(0, 0.5))
def test_a_pair_is_never_three_percent_worse_than_the_better_of_one_lane_and_two(
    first: float, second: float, contention: float
) -> None:
    pair = [job("a", first), job("b", second)]
    auto, one, two = (makespan(pair, lanes, contention) for lanes in (0, 1, 2))
    assert auto <= 1.03 * min(one, two)


@pytest.mark.parametrize(("load", "contention", "better"), [(0.5, 0.0, 2), (1.0, 0.3, 1)])
def test_squeezed_pairs_are_probed_within_the_memory_of_the_device(
    load: float, contention: float, better: int
) -> None:
    """A third notebook leaves two that are squeezed to 3 GB each, in one lane or in two."""
    options = [SqueezeOption(size * GB, slow) for size, slow in ((8, 1.0), (3, 1.05))]
    squeezable = {"demand": Demand(GB, 8 * GB, options=options), "user": "ann"}
    cells = [Cell(3000, 0.1)]
    jobs = [Job(id, cells, load=load, **squeezable) for id in "ab"]
    jobs.append(Job("c", [Cell(1, 0.1)], demand=Demand(7 * GB, GB), user="pat", stays=1e4))
    times = {}
    for lanes in (0, 1, 2):
        conduct = Conduct(contention=contention, checks=True)
        simulation = Simulation(jobs, 16 * GB, "pack", Rules(running_lanes=lanes), conduct)
        simulation.run()
        times[lanes] = max(outcome.ended or 0 for outcome in simulation.outcomes)
        assert all(use.persistent + use.lanes <= 16 * GB for use in simulation.memory)
        assert all(outcome.ended for outcome in simulation.outcomes)
    assert times[better] == min(times[1], times[2])
    assert times[0] <= 1.03 * times[better]


def test_sessions_that_come_and_go_cost_little_more() -> None:
    """The mix changes all the time, and the probes are not worth more than they cost."""
    cells = [Cell(40, 0.1, think=3.0) for _ in range(60)]
    jobs = [
        Job(f"n{n}", cells, demand=Demand(GB, GB), user=str(n), arrival=n / 3, load=1.0)
        for n in range(5)
    ]
    auto, one = (makespan(jobs, lanes, 0.2) for lanes in (0, 1))
    assert auto <= 1.03 * one


@pytest.mark.parametrize("before", ["fair", "pack"])
def test_the_past_of_a_notebook_before_it_was_met_does_not_count(before: str) -> None:
    jobs = [plain.Job(f"j{n}", iteration=0.1) for n in range(2)]
    rules = Rules(running_lanes=2 * (before == "pack"))
    run = plain.Simulation(jobs, before, rules=rules).run(20)
    run.enact(run.scheduler.set_policy(run.now, "pack"))
    run.enact(run.scheduler.set_running_lanes(run.now, 0))
    assert says(run.run(40).scheduler.snapshot(40).concurrency_tuner, "lanes_gain", 100)


def test_a_waiting_session_is_told_the_result() -> None:
    run = plain.Simulation([plain.Job(f"j{n}", iteration=0.1) for n in range(3)], "pack").run(1)
    device_snapshot = run.scheduler.snapshot(1)
    assert sentence([device_snapshot.concurrency_tuner], str) == (
        "2 lanes at once: each notebook is measured alone first"
    )
    waiting = [state.why for state in device_snapshot.sessions if state.state == "waiting"]
    assert waiting
    assert all(why[-1] == device_snapshot.concurrency_tuner for why in waiting)


@pytest.mark.parametrize(("policy", "lanes"), [("pack", 2), ("fair", 0), ("fair", 2)])
def test_only_lanes_that_pack_opens_by_itself_are_probed(policy: str, lanes: int) -> None:
    jobs = [plain.Job(f"j{n}", iteration=0.1) for n in range(3)]
    run = plain.Simulation(jobs, policy, rules=Rules(running_lanes=lanes)).run(10)
    assert run.scheduler.snapshot(10).concurrency_tuner is None
