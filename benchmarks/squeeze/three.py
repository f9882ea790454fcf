"""Three real notebooks on a device that holds two of them: squeezed, so that all have a place at
once; and without squeezing, so that one waits until another has ended.

`python benchmarks squeeze.three [ROUNDS]`. All begin at once. `at_once` is how many have trained
before the first of them has ended, the first iterations not counted, in which demands are measured
one notebook at a time. `total` is the time until all have ended, and `last_trains` that until the
last of them has trained. The two ways run in turn, so a ratio is the median over rounds of two runs
next to each other.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import torch
from measure import Figure, broker, publish
from process import command

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.client.torch.squeeze.squeeze import Squeeze
from jupyter_gpushare.settings import Settings, as_environment
from squeeze.networks import TRAININGS

MODEL = "mlp"
NOTEBOOKS = 3
ITERATIONS = 20
FIRST = 6  # iterations after which the demand is measured, and how far it can be squeezed
MIB = 1 << 20


class Ended(NamedTuple):
    """The report of a notebook at its end; times are those of the clock of the machine."""

    trained: float  # when its first iterations and one more had ended
    ended: float
    persistent: int  # bytes
    ephemeral: int  # bytes, unsqueezed
    moved: int  # bytes that have left memory
    state: str  # a hash of its weights


def train(iterations: int) -> Ended:
    torch.set_num_threads(1)
    training, ends = TRAININGS[MODEL](), []
    with gpushare.session(name=f"notebook-{os.getpid()}") as session:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(iterations):
            training.iterate()
            ends.append(time.monotonic())
        demand, squeeze = session.memory.demand(), _squeeze_of(session.memory)
    moved = squeeze.tier.written + squeeze.cache.dropped
    sizes = demand.persistent_bytes, demand.ephemeral_bytes
    return Ended(ends[FIRST], ends[-1], *sizes, moved, training.state())


def _squeeze_of(memory: object) -> Squeeze:
    assert isinstance(memory, TorchMemory)
    assert isinstance(memory.squeeze, Squeeze)
    return memory.squeeze


class Run(NamedTuple):
    """All notebooks, which began at `began`."""

    began: float
    notebooks: list[Ended]

    @property
    def at_once(self) -> int:
        first_end = min(one.ended for one in self.notebooks)
        return sum(one.trained < first_end for one in self.notebooks)

    @property
    def total(self) -> float:
        return max(one.ended for one in self.notebooks) - self.began

    @property
    def last_trains(self) -> float:
        return max(one.trained for one in self.notebooks) - self.began

    @property
    def mean_completion(self) -> float:
        return statistics.fmean(one.ended for one in self.notebooks) - self.began


def started(settings: Settings, iterations: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("squeeze.three", "train", str(iterations)),
        env={**os.environ, **as_environment(settings), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(notebooks: int, iterations: int, **settings: Any) -> Run:
    with broker(**settings) as (chosen, _):
        processes = [started(chosen, iterations) for _ in range(notebooks)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        began = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            print("go", file=process.stdin, flush=True)
        told = [process.communicate()[0] for process in processes]
    return Run(began, [Ended(*json.loads(output.splitlines()[-1])) for output in told])


def room_for_two() -> int:
    """Return the bytes of a device that two of them fit, and three do not: beside the lane for one
    iteration there is the persistent memory of two and a half."""
    (alone,) = run(1, FIRST + 1).notebooks
    return int((NOTEBOOKS - 0.5) * alone.persistent) + alone.ephemeral


def main() -> int:
    capacity, rounds = room_for_two(), int((sys.argv[1:] or ["3"])[0])
    pairs = [
        (
            run(NOTEBOOKS, ITERATIONS, host_capacity_bytes=capacity),
            run(NOTEBOOKS, ITERATIONS, host_capacity_bytes=capacity, squeeze=False),
        )
        for _ in range(rounds)
    ]
    states = {one.state for pair in pairs for each in pair for one in each.notebooks}
    median = statistics.median
    figures = [
        Figure("capacity", capacity / MIB, "MiB"),
        Figure("at_once", min(one.at_once for one, _ in pairs), "", NOTEBOOKS, at_least=True),
        Figure("at_once_waiting", max(other.at_once for _, other in pairs)),
        Figure("results", len(states), "", target=1),
        Figure(
            "moved", median(sum(n.moved for n in one.notebooks) for one, _ in pairs) / MIB, "MiB"
        ),
        Figure("total_over_waiting", median(one.total / other.total for one, other in pairs)),
        Figure("total", median(one.total for one, _ in pairs), "s"),
        Figure("total_waiting", median(other.total for _, other in pairs), "s"),
        Figure("last_trains", median(one.last_trains for one, _ in pairs), "s"),
        Figure("last_trains_waiting", median(other.last_trains for _, other in pairs), "s"),
        Figure("mean_completion", median(one.mean_completion for one, _ in pairs), "s"),
        Figure("mean_completion_waiting", median(other.mean_completion for _, other in pairs), "s"),
    ]
    return publish("squeeze_three", figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        print(json.dumps(train(int(sys.argv[2]))))
        sys.exit(0)
    sys.exit(main())
