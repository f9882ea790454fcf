"""Notebooks that share this machine, as real processes, with one limit on their joint memory.

It prints a JSON line for each run: each way of `ways.py`, for 2, 4 and 8 notebooks that fit
together and that do not. Then more pairs follow of the two ways that the promises compare, with
notebooks that fit, since single pairs differ by a fifth. It forks the notebooks from a process that
has imported PyTorch, and computed nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from multiprocessing import connection, get_context
from typing import Any, NamedTuple

from lanes.memory import lane_bytes
from measure import rotated

from evidence.contest.limit import Limit
from evidence.contest.notebooks import Diary, Notebook, work
from evidence.contest.ways import COMPARED, STOCK, WAYS, Beside, Way

COUNTS = (2, 4, 8)
ROUNDS = 2
PAIRS = 7  # after them
ITERATIONS = 96  # of all trainings of a run
LENGTHS = (1.7, 0.5, 1.2, 0.6)  # of the trainings, over their mean; in turn
# the cells of a training, and the iterations whose time is the pause between two of them
CELLS, PAUSE = 2, 4
# Beside the most trainings the short cells want less than that notebook's share: if they wanted
# more, each would wait for those before, and the length of the queue would decide the figure.
SHORT_CELLS, SHORT_ITERATIONS, GAP = 4, 3, 24
PICTURES, SHORT_PICTURES = 96, 32
# by whether they fit: part of the sum of their peaks, each alone
LIMITS = {True: 1.25, False: 1 / 1.5}
PERIOD_SECONDS = 0.01
MAY_LAST_SECONDS = 100.0
SHORT = "short cells"


class Run(NamedTuple):
    """One run. `limit` and `peak` are bytes; `iteration` is the time of one alone, in seconds. A
    notebook that failed has no diary."""

    way: str
    trainings: int
    fits: bool
    iteration: float
    limit: int
    peak: int
    diaries: dict[str, Diary]
    failed: list[str]


class Kernel:
    """A notebook's process, seen from outside."""

    def __init__(self, way: Way, beside: Beside, notebook: Notebook) -> None:
        self.name = notebook.name
        self.pipe, theirs = get_context("fork").Pipe()
        self._process = get_context("fork").Process(
            target=work, args=(way, beside, notebook, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def diary(self) -> Diary | None:
        """Wait for its diary, and until the notebook is closed; None: it was killed, or failed."""
        try:
            written: Diary | None = self.pipe.recv()
        except EOFError:
            written = None
        self._process.join()
        return written


def run(
    way: Way, notebooks: Sequence[Notebook], limit: int, iteration: float, fits: bool = True
) -> Run:
    from evidence.contest import network  # noqa: F401 - so that all who are forked have PyTorch

    with way.beside(limit, iteration) as beside:
        broker_pid = beside.broker_pid
        kernels = [Kernel(way, beside, notebook) for notebook in notebooks]
        for kernel in kernels:
            kernel.pipe.recv()
        watched = Limit(
            limit,
            [kernel.pid for kernel in kernels],
            lambda: 0 if broker_pid is None else lane_bytes(broker_pid),
        )
        written = dict(_diaries(kernels, way.in_line, watched))
    diaries = {name: diary for name, diary in written.items() if diary is not None}
    failed = sorted(written.keys() - diaries.keys())
    return Run(way.name, len(notebooks) - 1, fits, iteration, limit, watched.peak, diaries, failed)


def _diaries(
    kernels: Sequence[Kernel], in_line: bool, watched: Limit
) -> Iterator[tuple[str, Diary | None]]:
    """Yield diaries as they come."""
    began = time.monotonic()
    to_come = deque(kernels)
    running: dict[Any, Kernel] = {}
    while to_come or running:
        while to_come and not (in_line and running):
            kernel = to_come.popleft()
            kernel.pipe.send(began)
            running[kernel.pipe] = kernel
        for pipe in connection.wait(list(running), PERIOD_SECONDS):
            kernel = running.pop(pipe)
            yield kernel.name, kernel.diary()
        watched.look()
        assert time.monotonic() - began < MAY_LAST_SECONDS, "a run does not end"


# --- what runs ------------------------------------------------------------------------------------


def alone(pictures: int) -> tuple[float, int]:
    """Return seconds of an iteration, and bytes at the peak."""
    done = run(STOCK, [Notebook("alone", pictures, (40,))], sys.maxsize, 0.0)
    seconds = [ended - began for began, ended in done.diaries["alone"].iterations]
    return statistics.median(seconds), done.peak


def to_train(count: int, iteration: float) -> list[Notebook]:
    """Return the lengths; the first is the longest."""
    mean = ITERATIONS / count / CELLS
    return [
        Notebook(
            f"training {number}",
            PICTURES,
            (round(mean * LENGTHS[number % len(LENGTHS)]),) * CELLS,
            pause=PAUSE * iteration,
        )
        for number in range(count)
    ]


def short_cells(iteration: float) -> Notebook:
    cells = (SHORT_ITERATIONS,) * SHORT_CELLS
    return Notebook(SHORT, SHORT_PICTURES, cells, gap=GAP * iteration)


def a_round(number: int, ways: Sequence[Way], limits: Mapping[bool, float]) -> Iterator[Run]:
    iteration, peak = alone(PICTURES)
    _, peak_of_short = alone(SHORT_PICTURES)
    for count in COUNTS:
        # in every other round the notebooks come in the reverse order
        order = to_train(count, iteration)[:: -1 if number % 2 else 1]
        for fits, part in limits.items():
            limit = int(part * (count * peak + peak_of_short))
            for way in rotated(ways, number):
                yield run(way, [*order, short_cells(iteration)], limit, iteration, fits)


def main() -> None:
    print(json.dumps(os.getloadavg()[0]), flush=True)
    rounds = (a_round(number, WAYS, LIMITS) for number in range(ROUNDS))
    pairs = (a_round(number, COMPARED, {True: LIMITS[True]}) for number in range(PAIRS))
    for done in chain(*rounds, *pairs):
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
