"""The cost of squeezing while iterations fit, so that nothing is squeezed.

`python benchmarks squeeze.idle [PAIRS]` trains small operations, each in two processes by turns:
with `off`, and under `auto` or with a size that is never reached. A figure is the median of the CPU
time of an iteration of the other process over that of the `off` one right before or after it. In
`after`, iterations did not fit for a while before, so the session has learned how far they can be
squeezed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable

import torch
from measure import Figure, publish
from torch import nn

from jupyter_gpushare.client.options import Wanted
from squeeze.costs import Way
from squeeze.networks import Classifier, Training, vectors

PAIRS = 301
MOST = 1.02
NEVER = 1 << 40  # bytes: a size that is never reached


class Cells(nn.Module):  # type: ignore[misc]
    """A loop of recurrent cells over 100 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(32, 64), nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 64)
        for _ in range(100):
            state = self.cell(x, state)
        result: torch.Tensor = self.last(state)
        return result


def small() -> nn.Module:
    layers = [
        layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(64, 100))


TRAININGS: dict[str, Callable[[], Training]] = {
    "small_operations": lambda: Classifier(small, lambda: vectors(512, 64)),
    "recurrent_cells": lambda: Classifier(Cells, lambda: vectors(64, 32)),
}


def ratio(
    make: Callable[[], Training],
    pairs: int,
    directory: str,
    wanted: Wanted,
    was_crowded: bool = False,
) -> float:
    ways = idle, off = Way(make, directory, wanted), Way(make, directory, "off")
    if was_crowded:
        idle.leave_room(0)
    for way in ways:
        way.warmed()
    idle.leave_room(sys.maxsize)
    for number in range(pairs + 1):
        for way in ways if number % 2 else ways[::-1]:
            way.step()
    found = zip(idle.steps[-pairs:], off.steps[-pairs:], strict=True)
    for way in ways:
        way.end()
    return statistics.median(ours.seconds / theirs.seconds for ours, theirs in found)


def main() -> int:
    torch.set_num_threads(1)
    pairs = int(sys.argv[1]) if sys.argv[1:] else PAIRS
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for name, make in TRAININGS.items():
            found = {
                f"auto_over_off_{name}": ratio(make, pairs, directory, "auto"),
                f"auto_over_off_{name}_after": ratio(make, pairs, directory, "auto", True),
                f"size_over_off_{name}": ratio(make, pairs, directory, NEVER),
            }
            figures += [Figure(label, value, target=MOST) for label, value in found.items()]
    return publish("squeeze_idle", figures)


if __name__ == "__main__":
    sys.exit(main())
