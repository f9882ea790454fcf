"""The cost of sharing for a notebook that is alone on the GPU: its iterations over stock PyTorch's.

Two processes train the same model, one with sharing and one without. Only one of them runs at a
time, and blocks of both alternate, so that a change of the card's clock falls on both. Each block
with sharing is compared with the mean of those before and after it; the ratio is the median.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from functools import partial

from measure import broker, in_turn

from ..models import MODELS
from ..places import DEVICE, IS_REHEARSAL, figure, say, status_of
from ..trainer import Trainer, trainers

WARM_UP = 12  # iterations in which demands are learned and libraries choose their algorithms
PAIRS = 2 if IS_REHEARSAL else 15
SECONDS = 0.05 if IS_REHEARSAL else 0.4  # of one block
LEAST = 3  # iterations of one


def block(trainer: Trainer, iterations: int) -> float:
    """Return seconds of one iteration."""
    done = trainer.ask(do="run", iterations=iterations)
    return float(done["ended"] - done["began"]) / iterations


def compare(stock: Trainer, shared: Trainer) -> None:
    for trainer in (stock, shared, stock, shared):
        pace = block(trainer, WARM_UP)
    iterations = max(LEAST, int(SECONDS / pace))
    off, ratios = in_turn(
        lambda: block(shared, iterations), lambda: block(stock, iterations), PAIRS
    )
    model = stock.model
    figure(f"{model}_iteration_ms", statistics.median(off) * 1e3, "ms")
    figure(f"{model}_ratio", statistics.median(ratios), target=1.01)
    figure(f"{model}_ratio_least", min(ratios))
    figure(f"{model}_ratio_most", max(ratios))


def measure(model: str) -> None:
    with broker(DEVICE, idle_exit_seconds=5) as (settings, client), ExitStack() as stack:
        (stock,) = stack.enter_context(trainers(None, [model]))
        (shared,) = stack.enter_context(trainers(settings, [model]))
        compare(stock, shared)
        devices = [device for device in client.look().devices if device.sessions]
        for device in devices:
            say(note={model: {"lanes": [lane.bytes for lane in device.lanes]}})


def main() -> int:
    models = MODELS[-1:] if IS_REHEARSAL else MODELS
    return status_of(("", partial(measure, model)) for model in models)


if __name__ == "__main__":
    sys.exit(main())
