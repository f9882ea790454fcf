"""Squeezed iterations beside stock PyTorch and beside other ways to need less: peaks that are
counted exactly, times in pairs.

`python benchmarks squeeze.costs [ROUNDS] [NETWORK...]` trains each network in several ways, each in
a process of its own. A peak is the ephemeral memory of an iteration. A time is the CPU time of all
threads of the process in an iteration over that of a stock iteration right before or after it, in
turn; the median of these pairs. `again` is stock PyTorch once more, which shows the accuracy.
Results go to build/squeeze.json.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any, NamedTuple

import torch
from measure import RESULTS

from jupyter_gpushare.client.options import Wanted
from jupyter_gpushare.client.torch.demand.estimator import Iteration
from jupyter_gpushare.client.torch.iterations.boundaries import Boundaries
from jupyter_gpushare.client.torch.memory import TorchMemory
from squeeze.networks import TRAININGS, Training
from squeeze.others import (
    Elsewhere,
    checkpointed,
    largest_operation,
    save_on_cpu,
    selectively_checkpointed,
)

MIB = 1 << 20
WARM_UP = 4  # iterations until the peak of a budget is steady
LEARNINGS = 3  # trainings; the median counts
LEARNED = 4  # iterations from the first one on that may be slow since they are learned from
NOTHING_MOVES = 1000  # per cent of the peak: a budget that is never reached
OURS = "nothing moves", "60 %", "floor"


class Granted:
    """Grants every turn at once, since the benchmark measures one notebook alone."""

    def __init__(self) -> None:
        self.entering = RLock()

    def enter(self) -> None: ...

    def boundary(self) -> None: ...

    def abandon(self) -> None: ...

    def leave(self) -> None: ...

    def unless_waiting(self, act: Callable[[], None]) -> bool:
        act()
        return True


class Step(NamedTuple):
    loss: float
    seconds: float  # of CPU time, of all threads
    wall: float  # seconds
    peak: int  # bytes of ephemeral memory
    live: int  # bytes at its end


class Way:
    """A training in a process of its own, one iteration at a time."""

    def __init__(self, make: Callable[[], Training], directory: str, wanted: Wanted) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        work = functools.partial(_train, theirs, make, directory, wanted)
        self._process = multiprocessing.get_context("fork").Process(target=work)
        self._process.start()
        self.steps: list[Step] = []

    def step(self) -> Step:
        self._ours.send("step")
        self.steps.append(self._ours.recv())
        return self.steps[-1]

    def warmed(self) -> Way:
        for _ in range(WARM_UP):
            self.step()
        return self

    def leave_room(self, size: int) -> None:
        """Leave its iterations `size` bytes of the device."""
        self._ours.send(size)
        self._ours.recv()

    def state(self) -> str:
        """Return a hash of all that it has trained so far."""
        self._ours.send("state")
        state: str = self._ours.recv()
        return state

    def end(self) -> None:
        self._ours.send("end")
        self._process.join()


def _train(pipe: Any, make: Callable[[], Training], directory: str, wanted: Wanted) -> None:
    training, memory = make(), TorchMemory(page_directory=lambda: directory)
    memory.want_squeeze(wanted)
    Boundaries(Granted(), memory).install()
    while (order := pipe.recv()) != "end":
        if isinstance(order, int):
            memory.leave_room(order)
            pipe.send(None)
        else:
            pipe.send(_stepped(training, memory) if order == "step" else training.state())


def _stepped(training: Training, memory: TorchMemory) -> Step:
    wall, seconds = time.perf_counter(), time.process_time()
    loss = training.iterate()
    seconds, wall = time.process_time() - seconds, time.perf_counter() - wall
    *_, latest = (Iteration(0, 0, 0, 0), *memory.estimator.recent)
    return Step(loss, seconds, wall, latest.ephemeral, latest.live)


class Row(NamedTuple):
    label: str
    peak: int  # bytes
    over_stock: float
    over_largest: float  # operation
    slowdown: float
    wall: float  # over stock
    is_same: bool


class Network:
    """All ways to train one of the networks, each beside the same stock training."""

    def __init__(self, name: str, rounds: int, directory: str) -> None:
        self._make, self._rounds, self._directory = TRAININGS[name], rounds, directory
        self._elsewhere = Elsewhere()
        self._largest = in_a_child(lambda: largest_operation(self._make()))
        self._stock = self._way("off").warmed()
        self._state = self._stock.state()
        self._peak = self._stock.steps[-1].peak

    def end(self) -> None:
        self._stock.end()

    def _way(self, wanted: Wanted, **options: Any) -> Way:
        return Way(functools.partial(self._make, **options), self._directory, wanted)

    def _ways(self) -> dict[str, Callable[[], Way]]:
        def squeezed(percent: int) -> Callable[[], Way]:
            return lambda: self._way(max(1, self._peak * percent // 100))

        aside = functools.partial(save_on_cpu, self._elsewhere)
        return {
            "again": lambda: self._way("off"),
            "nothing moves": squeezed(NOTHING_MOVES),
            "60 %": squeezed(60),
            "floor": squeezed(0),
            "save_on_cpu": lambda: self._way("off", around=aside),
            "checkpoint": lambda: self._way("off", wrap=checkpointed),
            "selective checkpoint": lambda: self._way("off", wrap=selectively_checkpointed),
        }

    def rows(self) -> Iterator[Row]:
        return (self._row(label, make()) for label, make in self._ways().items())

    def _row(self, label: str, way: Way) -> Row:
        is_same = way.warmed().state() == self._state
        pairs = [self._pair(way, bool(number % 2)) for number in range(self._rounds)]
        way.end()
        peak = way.steps[-1].peak
        both = zip(way.steps, self._stock.steps, strict=False)
        return Row(
            *(label, peak, peak / self._peak, peak / self._largest),
            statistics.median(ours.seconds / theirs.seconds for ours, theirs in pairs),
            statistics.median(ours.wall / theirs.wall for ours, theirs in pairs),
            is_same and all(ours.loss == theirs.loss for ours, theirs in both),
        )

    def _pair(self, way: Way, is_first: bool) -> tuple[Step, Step]:
        if is_first:
            return way.step(), self._stock.step()
        theirs = self._stock.step()
        return way.step(), theirs

    def learning(self) -> list[float]:
        """Return the times of the first iterations under `auto`, which do not fit, over those of
        stock PyTorch."""
        tables = [self._learning_once() for _ in range(LEARNINGS)]
        return [statistics.median(column) for column in zip(*tables, strict=True)]

    def _learning_once(self) -> list[float]:
        ways = stock, learns = self._way("off"), self._way("auto")
        learns.leave_room(0)
        for number in range(LEARNED):
            for one in ways if number % 2 else ways[::-1]:
                one.step()
        for one in ways:
            one.end()
        return [a.seconds / b.seconds for a, b in zip(learns.steps, stock.steps, strict=True)]


def in_a_child(measure: Callable[[], int]) -> int:
    """Measure in a child process, so that this one stays small, and return the result."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(measure()))
    child.start()
    measured: int = ours.recv()
    child.join()
    return measured


def dominates(ours: list[Row], other: Row) -> bool:
    """Whether one of our rows takes less memory in no more time, or less time in no more memory."""
    return any(
        one.is_same
        and one.peak <= other.peak
        and one.slowdown <= other.slowdown
        and (one.peak < other.peak or one.slowdown < other.slowdown)
        for one in ours
    )


def described(row: Row, ours: list[Row]) -> str:
    same = "same bits" if row.is_same else "OTHER BITS"
    told = (
        f"  {row.label:22} {row.peak / MIB:8.1f} MiB {row.over_stock:5.0%}"
        f" {row.over_largest:6.2f} of the largest operation"
        f"  CPU {row.slowdown:5.2f} wall {row.wall:5.2f}  {same}"
    )
    if row.label in ("again", *OURS):
        return told
    return told + ("  we take less" if dominates(ours, row) else "  WE DO NOT TAKE LESS")


def measured(name: str, rounds: int, directory: str) -> dict[str, object]:
    network = Network(name, rounds, directory)
    print(name, flush=True)
    rows: list[Row] = []
    for row in network.rows():
        rows.append(row)
        print(described(row, [one for one in rows if one.label in OURS]), flush=True)
    learning = network.learning()
    network.end()
    print(
        "  first iterations under auto:", *(f"{slowdown:.2f}" for slowdown in learning), flush=True
    )
    return {"rows": [row._asdict() for row in rows], "learning": learning}


def main() -> None:
    torch.set_num_threads(1)
    rounds, names = int((sys.argv[1:] or ["9"])[0]), sys.argv[2:] or list(TRAININGS)
    results = RESULTS.with_name("squeeze.json")
    results.parent.mkdir(exist_ok=True)
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for name in names:
            found[name] = measured(name, rounds, directory)
            results.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
