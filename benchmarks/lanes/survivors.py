"""The cost of survivors of an iteration: how soon none are left in the lane, and how long each
takes.

The lane changes hands after every iteration, as among notebooks that all want it. The first
iterations of a training are outside of the lane, until its demand is known; then blocks that
outlive their iteration are promoted until they are foreseen. `last_promotion` is the number of the
last iteration, of the first ITERATIONS in the lane, that left anything there.

The times are of emptying the lane and of entering it again, with several numbers of surviving
pages in blocks of 64 KiB, the smallest of a lane, each with a dead one between it and the next.
`one_block` is the same with all pages adjacent.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from measure import Figure, publish
from models import TRAININGS

from jupyter_gpushare import _core
from lanes.lane import LANE, opened

PAGE = 4096
MODELS = ("cnn", "transformer")
OUTSIDE = 2  # iterations that learn the demand
ITERATIONS = 20
SETTLED = 10  # from this one on nothing may be promoted
SMALLEST = 16  # pages
SURVIVORS = (0, SMALLEST, 6 * SMALLEST, 625 * SMALLEST)  # pages
ROUNDS = 15


def promotions(model: str) -> list[int]:
    """Return pages promoted after each of the first iterations in the lane."""
    iterate = TRAININGS[model]()
    for _ in range(OUTSIDE):
        iterate()
    pages = []
    for _ in range(ITERATIONS):
        _core.Lane.enter()
        iterate()
        _core.Lane.leave()
        pages.append(_core.Lane.promote() // PAGE)
    return pages


def of_training(model: str) -> list[Figure]:
    pages = promotions(model)
    last = max((number for number, count in enumerate(pages, 1) if count), default=0)
    return [
        Figure(f"{model}_promoted_pages", sum(pages)),
        Figure(f"{model}_last_promotion", last),
        Figure(f"{model}_promoted_when_settled", sum(pages[SETTLED:]), target=0),
    ]


def change_over(descriptor: int, blocks: int, pages: int) -> float:
    """Return seconds of CPU time to promote `blocks` blocks of `pages` pages and to enter again.
    Nothing was learned yet."""
    reason = _core.Lane.attach(descriptor, LANE)
    assert not reason, reason
    _core.Lane.enter()
    alive = [torch.ones(pages * PAGE, dtype=torch.uint8) for _ in range(2 * blocks)][::2]
    _core.Lane.leave()
    start = time.thread_time()
    promoted = _core.Lane.promote()
    _core.Lane.enter()
    seconds = time.thread_time() - start
    _core.Lane.leave()
    assert promoted == blocks * pages * PAGE
    alive.clear()
    reason = _core.Lane.detach()
    assert not reason, reason
    return seconds


def times(descriptor: int) -> list[Figure]:
    def median(blocks: int, pages: int) -> float:
        return 1e6 * statistics.median(
            change_over(descriptor, blocks, pages) for _ in range(ROUNDS)
        )

    figures = [
        Figure(f"{pages}_pages_us", median(pages // SMALLEST, SMALLEST), "us")
        for pages in SURVIVORS
    ]
    return [*figures, Figure("one_block_us", median(1, SURVIVORS[-1]), "us")]


def main() -> int:
    descriptor = opened()
    figures = [figure for model in MODELS for figure in of_training(model)]
    # The survivors of the trainings are not part of the following.
    _core.Lane.promote()
    return publish("survivors", figures + times(descriptor))


if __name__ == "__main__":
    sys.exit(main())
