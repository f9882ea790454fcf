"""How fast the simulator is, and whether the broker behaves as it predicts."""

from __future__ import annotations

import time
from concurrent.futures import Executor

from evidence.document import Section, table
from jupyter_gpushare._core import Cell, Conduct, Demand, Job, Rules, Simulation

GB = 10**9
ITERATIONS = 200_000


def speed(notebooks: int, steps: bool, quantum: float) -> tuple[float, int]:
    """Return iterations in a second of processor time, and turns."""
    jobs = [
        Job(
            str(n),
            [Cell(ITERATIONS // notebooks, 0.1)],
            user=str(n % 5),
            demand=Demand(GB // 10, GB),
        )
        for n in range(notebooks)
    ]
    simulation = Simulation(jobs, 16 * GB, "fair", Rules(quantum=quantum), Conduct(steps=steps))
    began = time.process_time()
    simulation.run()
    return simulation.iterations / (time.process_time() - began), len(simulation.turns)


def section(pool: Executor) -> Section:
    rows = []
    for notebooks, quantum in ((1, 0.25), (10, 0.25), (10, 5.0), (100, 0.25), (100, 5.0)):
        each, turns = speed(notebooks, True, quantum)
        skipped, _ = speed(notebooks, False, quantum)
        rows.append(
            (f"{notebooks}, {quantum:g} s", f"{turns:,}", f"{each:,.0f}", f"{skipped:,.0f}")
        )
    return Section(
        "The simulator itself",
        [
            "Iterations in a second of processor time, of notebooks under `fair` that all want the "
            "device all the time, with iterations of 0.1 s: each boundary visited, and those at "
            "which nothing is said skipped. Tests hold that both give the same result to the last "
            "bit. The time goes into the scheduler's decisions, several for each turn.",
            table(("notebooks, turns of", "turns", "visited", "skipped"), rows),
        ],
    )
