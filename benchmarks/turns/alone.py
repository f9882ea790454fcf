"""The cost of sharing for a notebook that is alone: iteration time with sharing over without.

Blocks of iterations with sharing on and off alternate in one process, so that a change of the
machine's pace falls on both; the ratio is the median over the blocks of many trainings, since
single trainings differ by some percent, and neighbours of a virtual machine change a block by as
much. The training uses one thread, since other processes of the machine would otherwise determine
the result. `boundary_us` is the session's part alone; `added` is the increase of an iteration with
all hooks and the measurement of memory.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from measure import Figure, broker, in_turn, publish

from jupyter_gpushare.client.notebook.sharing import cell_ended, session
from jupyter_gpushare.settings import Settings

WIDTHS = {1: 128, 10: 512}  # approximate milliseconds of an iteration: layer width
SECONDS = 72.0  # for each of them
TRAININGS = 24
PAIRS = 4  # of blocks, for each training
LOOPS = 20_000


def training(width: int) -> Callable[[], None]:
    """One iteration of plain PyTorch training."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, width) for _ in range(4))
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(128, width)

    def iterate() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return iterate


def block(iterate: Callable[[], None], iterations: int) -> float:
    """Return median seconds of an iteration. The first few, in which demands are learned, are left
    out."""
    times = []
    for _ in range(iterations + 5):
        start = time.perf_counter()
        iterate()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:])


def shared_block(settings: Settings, iterate: Callable[[], None], iterations: int) -> float:
    with session(settings, name="alone"):
        seconds = block(iterate, iterations)
        cell_ended()
    return seconds


def compare(settings: Settings, width: int) -> tuple[float, float]:
    """Return seconds of an iteration without sharing, and the ratio with sharing to it."""
    off: list[float] = []
    ratios: list[float] = []
    for _ in range(TRAININGS):
        for all, new in zip((off, ratios), pairs(settings, training(width)), strict=True):
            all += new
    return statistics.median(off), statistics.median(ratios)


def pairs(settings: Settings, iterate: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Return seconds of iterations without sharing, and the ratios with sharing to them."""
    pace = block(iterate, 20)
    iterations = max(5, int(SECONDS / (2 * PAIRS * TRAININGS) / pace))
    return in_turn(
        lambda: shared_block(settings, iterate, iterations),
        lambda: block(iterate, iterations),
        PAIRS,
    )


def boundary(settings: Settings) -> float:
    """Return microseconds of a boundary without a message: the session holds the turn while no
    other session waits."""
    times = []
    with session(settings, name="boundary") as opened:
        opened.enter()
        for _ in range(LOOPS):
            start = time.perf_counter()
            opened.boundary()
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> int:
    torch.set_num_threads(1)
    figures = []
    with broker() as (settings, _):
        figures.append(Figure("boundary_us", boundary(settings), "us", target=5))
        for name, width in WIDTHS.items():
            seconds, ratio = compare(settings, width)
            target = 1.01 if name == 10 else None
            figures.append(Figure(f"iteration_{name}_ms", seconds * 1e3, "ms"))
            figures.append(Figure(f"ratio_at_{name}_ms", ratio, target=target))
            figures.append(Figure(f"added_at_{name}_ms_us", (ratio - 1) * seconds * 1e6, "us"))
    return publish("alone", figures)


if __name__ == "__main__":
    sys.exit(main())
