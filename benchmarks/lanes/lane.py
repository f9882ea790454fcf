"""The cost or gain of a lane for a training that is alone: CPU time of an iteration in it over
without.

Blocks of iterations in the lane and outside alternate in one process, so that a change of the
machine's pace falls on both; a block in the lane is compared with the mean of those around it, and
the ratio is the median. One thread. Every iteration ends as at a context switch, with promotion,
which has nothing to do once the survivors are known.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from measure import Figure, in_turn, publish
from models import TRAININGS

from jupyter_gpushare import _core, _core_testing

MIB = 1 << 20
LANE = 512 * MIB
MODELS = ("cnn", "transformer", "perceptron")
PAIRS = 20
SECONDS = 0.3  # of a block
BOUNDARIES = 10_000


def in_lane(iteration: Callable[[], None]) -> Callable[[], None]:
    def whole() -> None:
        _core.Lane.enter()
        iteration()
        _core.Lane.leave()
        _core.Lane.promote()

    return whole


def block(iteration: Callable[[], None], iterations: int) -> float:
    """Return median seconds of CPU time of an iteration."""
    times = []
    for _ in range(iterations):
        start = time.thread_time()
        iteration()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def figures_of(name: str, iteration: Callable[[], None]) -> list[Figure]:
    shared = in_lane(iteration)
    for warm_up in (iteration, shared):
        block(warm_up, 5)
    iterations = max(5, int(SECONDS / block(iteration, 5)))
    promoted = _core_testing.promoted_pages(_core.Lane.usage())
    outside, ratios = in_turn(
        lambda: block(shared, iterations), lambda: block(iteration, iterations), PAIRS
    )
    usage = _core.Lane.usage()
    return [
        Figure(f"{name}_ms", statistics.median(outside) * 1e3, "ms"),
        Figure(f"{name}_ratio", statistics.median(ratios), target=1.01),
        Figure(f"{name}_footprint", usage.footprint / MIB, "MiB"),
        Figure(f"{name}_promoted_pages", _core_testing.promoted_pages(usage) - promoted, target=0),
    ]


def boundary() -> float:
    """Return microseconds of CPU time that an iteration without a survivor spends on its
    two ends."""
    start = time.thread_time()
    for _ in range(BOUNDARIES):
        _core.Lane.enter()
        _core.Lane.leave()
    return (time.thread_time() - start) / BOUNDARIES * 1e6


def open_lane() -> None:
    """Open the lane of this process, which computes in one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    descriptor = os.memfd_create("lane")
    os.ftruncate(descriptor, LANE)
    for reason in (
        _core.AllocationCounter.install(),
        _core.Lane.open(2 * LANE),
        _core.Lane.attach(descriptor, LANE),
    ):
        assert not reason, reason


def main() -> int:
    open_lane()
    figures = [Figure("boundary_us", boundary(), "us", target=1)]
    for name in MODELS:
        figures += figures_of(name, TRAININGS[name]())
    return publish("lane", figures)


if __name__ == "__main__":
    sys.exit(main())
