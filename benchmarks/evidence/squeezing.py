"""The hundred jobs where each can be squeezed, and where none can be."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from evidence import salus
from evidence.document import Section, spread, table
from jupyter_gpushare.simulator.simulate import run
from jupyter_gpushare.simulator.workload import Workload, squeezable

SEEDS = 20
POLICIES = ("srtf", "fair", "las")
# Parts of a job's peak, and the slowdowns there. They are assumed, at the cautious end of what
# squeezed models were measured to take.
PARTS = {0.6: 1.05, 0.4: 1.08, 0.25: 1.1}


class Squeezed(NamedTuple):
    """Minutes of mean completion and of the wait for the first turn, and until all are done:
    without squeezing, and with it."""

    completion: tuple[float, float]
    first: tuple[float, float]
    makespan: tuple[float, float]

    @property
    def gain(self) -> float:
        without, with_it = self.completion
        return without / with_it

    @property
    def cost(self) -> float:
        without, with_it = self.makespan
        return with_it / without


def squeezed(policy: str, tail: float, seed: int) -> Squeezed:
    plain = Workload(salus.jobs(seed, tail), salus.CAPACITY)
    jobs = [squeezable(job, PARTS) for job in plain.jobs]
    without, with_it = (
        run(subject, policy, salus.RULES(), salus.CONDUCT)
        for subject in (plain, plain._replace(jobs=jobs))
    )
    return Squeezed(
        (salus.mean_minutes(without.completion), salus.mean_minutes(with_it.completion)),
        (salus.mean_minutes(without.queueing), salus.mean_minutes(with_it.queueing)),
        (without.makespan, with_it.makespan),
    )


def section(pool: Executor) -> Section:
    found = {
        f"{policy}, sigma {tail:g}": list(pool.map(partial(squeezed, policy, tail), range(SEEDS)))
        for policy in POLICIES
        for tail in salus.TAILS
    }
    parts = ", ".join(f"{part:.0%} at {slowdown:g}" for part, slowdown in PARTS.items())
    return Section(
        "Past Salus: squeezing",
        [
            "The hundred jobs again, where an iteration of each can be squeezed to these parts of "
            f"its peak, each with its slowdown: {parts}. These figures are assumed "
            "here; how far a model can be squeezed is measured elsewhere. Each job bears a "
            f"slowdown of 1.1 for others. Aging after a minute; {SEEDS} seeds. Minutes: mean "
            "completion, and mean wait for the first turn; *cost* is the time until all are done "
            "with squeezing over that without, one lane at a time.",
            table(
                (
                    "",
                    "completion without",
                    "with",
                    "gain",
                    "worse",
                    "first turn without",
                    "with",
                    "cost",
                ),
                [
                    (
                        name,
                        spread([row.completion[0] for row in rows]),
                        spread([row.completion[1] for row in rows]),
                        spread([row.gain for row in rows], 2),
                        str(sum(row.gain < 1 for row in rows)),
                        spread([row.first[0] for row in rows]),
                        spread([row.first[1] for row in rows]),
                        spread([row.cost for row in rows], 3),
                    )
                    for name, rows in found.items()
                ],
            ),
            "More jobs are admitted, so the shortest ones need not wait for room. Where jobs that "
            "are nearly alike take turns, more of them go on side by side, and all end late: the "
            "first turn comes sooner, and the completion gains little or nothing.",
        ],
    )
