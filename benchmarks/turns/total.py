"""Notebooks together against the same notebooks one after the other: the cost of taking turns, or,
for notebooks that load their batches, the gain.

All processes are up and have their data before the clock starts. Rounds of both alternate.
"""

from __future__ import annotations

import statistics
import sys

from measure import Figure, broker, publish
from training import LOADING, MODEL, Trainer, trainers

from jupyter_gpushare.settings import Settings

NOTEBOOKS = 5
ITERATIONS = 250
ROUNDS = 3
WARM_UP_ITERATIONS = 20


def one_after_the_other(started: list[Trainer], iterations: int = ITERATIONS) -> float:
    """Return the sum of the seconds that each takes alone."""
    total = 0.0
    for trainer in started:
        trainer.start(iterations)
        began, ended = trainer.ended()
        total += ended - began
    return total


def together(started: list[Trainer], iterations: int = ITERATIONS) -> float:
    """Return seconds from the start of all until the last is done."""
    for trainer in started:
        trainer.start(iterations)
    times = [trainer.ended() for trainer in started]
    return max(ended for _, ended in times) - min(began for began, _ in times)


def measure(settings: Settings, models: list[str]) -> tuple[float, float]:
    """Return median seconds one after the other, and the median ratio of together to it."""
    serial, ratios = [], []
    with trainers(settings, models) as started:
        one_after_the_other(started, WARM_UP_ITERATIONS)
        for _ in range(ROUNDS):
            serial.append(one_after_the_other(started))
            ratios.append(together(started) / serial[-1])
    return statistics.median(serial), statistics.median(ratios)


def main() -> int:
    with broker() as (settings, _):
        serial, ratio = measure(settings, [MODEL] * NOTEBOOKS)
        _, both = measure(settings, [LOADING] * 2)
        _, one = measure(settings, [LOADING, MODEL])
    return publish(
        "total",
        [
            Figure("serial_seconds", serial, "s"),
            Figure("ratio", ratio, target=1.03),
            Figure("ratio_of_two_that_load", both, target=0.8),
            Figure("ratio_where_one_of_two_loads", one, target=0.95),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
