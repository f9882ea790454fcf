"""How soon no survivors of an iteration are left in the lane.

The lane changes hands after every iteration, as among notebooks that all want it. The first
iterations of a training are outside of the lane, until its demand is known; then blocks that
outlive their iteration are promoted until they are foreseen. `last_promotion` is the number of the
last iteration, of the first ITERATIONS in the lane, that left anything there.
"""

from __future__ import annotations

import sys

from measure import Figure, publish
from models import TRAININGS

from jupyter_gpushare import _core
from lanes.lane import open_lane

PAGE = 4096
MODELS = ("cnn", "transformer")
OUTSIDE = 2  # iterations that learn the demand
ITERATIONS = 20
SETTLED = 10  # from this one on nothing may be promoted


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


def main() -> int:
    open_lane()
    return publish("survivors", [figure for model in MODELS for figure in of_training(model)])


if __name__ == "__main__":
    sys.exit(main())
