"""The cost of not knowing whether two lanes at once get more done than one."""

from __future__ import annotations

import random
from concurrent.futures import Executor

from evidence.document import Section, spread, table
from jupyter_gpushare._core import Cell, Conduct, Demand, Job, Rules
from jupyter_gpushare.simulator.simulate import run
from jupyter_gpushare.simulator.workload import Workload

GB = 10**9
SEEDS = 1_000
ITERATIONS = 3_000  # of 0.1 s each
MOST = 1.03


def makespan(pair: list[Job], lanes: int, contention: float) -> float:
    conduct = Conduct(contention=contention, remembers_turns=False)
    return run(Workload(pair, 16 * GB), "pack", Rules(running_lanes=lanes), conduct).makespan


def measure(seed: int) -> tuple[float, float]:
    """Return, for a pair drawn by `seed`, one lane's time over that of two, and the time of
    automatic lanes over the better of these."""
    draw = random.Random(seed).uniform
    pair = [
        Job(name, [Cell(ITERATIONS, 0.1)], user=name, demand=Demand(GB, GB), load=draw(0.2, 1))
        for name in "ab"
    ]
    contention = draw(0, 0.5)
    auto, one, two = (makespan(pair, lanes, contention) for lanes in (0, 1, 2))
    return one / two, auto / min(one, two)


def section(pool: Executor) -> Section:
    measured = list(pool.map(measure, range(SEEDS), chunksize=10))
    groups = {
        "two lanes gain": [(gain, cost) for gain, cost in measured if gain >= 1],
        "two lanes lose": [(gain, cost) for gain, cost in measured if gain < 1],
    }
    above = sum(cost > MOST for _, cost in measured)
    return Section(
        "Lanes under the concurrency tuner",
        [
            f"{SEEDS:,} pairs of notebooks with {ITERATIONS:,} iterations of 0.1 s, which keep the "
            "device busy for 0.2 to 1 of the time, each drawn again; one that computes costs the "
            "other 0 to half of its speed. All three begin with no knowledge: one lane, two at "
            "once, and as many as `pack` finds to help. Median, 5th and 95th percentile.",
            table(
                ("", "pairs", "two lanes instead of one", "found, over the better", "at most"),
                [
                    (
                        name,
                        str(len(group)),
                        spread([gain for gain, _ in group], 2),
                        spread([cost for _, cost in group], 3),
                        f"{max(cost for _, cost in group):.3f}",
                    )
                    for name, group in groups.items()
                ],
            ),
            f"More than {MOST:g} of the better is needed in {above} of {SEEDS:,}. Of real pairs, "
            "which `benchmarks/turns/concurrency_tuner.py` measures in 40 minutes, "
            "[another page](../explanation/scheduling.md#several-lanes-at-once) tells.",
        ],
    )
