"""Physical memory of 1, 2, 4 and 8 notebooks in one lane, against what they need and against
stock.

Each is a process that trains a CNN or a transformer, in turn, with one thread. The measured value
is the peak of the sum over all of them, sampled while they train: the PSS of their own memory, and
what the lane has of the machine, once. `ratio` compares it with the sum of the persistent and the
largest ephemeral memory, which benchmarks/lanes/needs.py measures in processes without our code. So
the memory that sharing itself takes counts against it. `start_MiB` is the peak while they all learn
what they need, outside of the lane. `stock_MiB` is the peak of the same trainings without sharing,
all at once; chance decides how many are at their peak at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice

from measure import Figure, broker, publish, sampled
from training import Trainer, trainers

from jupyter_gpushare.settings import Settings
from lanes.needs import Needs, anonymous_bytes, needs

MODELS = ("large_cnn", "large_transformer")
COUNTS = (1, 2, 4, 8)
LEARNING, STEADY = 8, 4  # iterations of each
MIB = 1 << 20


def lane_bytes(broker_pid: int) -> int:
    """Return the machine's memory that the lanes of a broker have."""
    return sum(_bytes_of_memory(entry.path) for entry in os.scandir(f"/proc/{broker_pid}/fd"))


def _bytes_of_memory(descriptor: str) -> int:
    """Return the size of a file that is nowhere else; the broker may close one meanwhile."""
    with suppress(FileNotFoundError):
        if "memfd:" in os.readlink(descriptor):
            return os.stat(descriptor).st_blocks * 512
    return 0


def train(started: list[Trainer], iterations: int) -> None:
    for trainer in started:
        trainer.start(iterations)
    for trainer in started:
        trainer.ended()


def peaks(
    models: list[str], settings: Settings | None = None, broker_pid: int | None = None
) -> tuple[int, int]:
    """Return the peak of the sum over these trainings: at their start, and from then on."""

    def size() -> int:
        of_lanes = 0 if broker_pid is None else lane_bytes(broker_pid)
        return of_lanes + sum(anonymous_bytes(trainer.pid) for trainer in started)

    with trainers(settings, models) as started:
        with sampled(size) as learning:
            train(started, LEARNING)
        with sampled(size) as steady:
            train(started, STEADY)
    return max(learning), max(steady)


def in_lane(models: list[str]) -> tuple[int, int]:
    with broker() as (settings, client):
        return peaks(models, settings, client.welcome.pid)


def needed_bytes(models: list[str], alone: dict[str, Needs]) -> int:
    """Return the sum of the persistent bytes and the largest ephemeral bytes."""
    persistent = sum(alone[model].persistent for model in models)
    return persistent + max(alone[model].ephemeral for model in models)


def figures_of_needs(alone: dict[str, Needs]) -> Iterator[Figure]:
    for model, (persistent, ephemeral) in alone.items():
        yield Figure(f"{model}_persistent_MiB", persistent / MIB, "MiB")
        yield Figure(f"{model}_ephemeral_MiB", ephemeral / MIB, "MiB")


def figures_of(count: int, alone: dict[str, Needs]) -> list[Figure]:
    models = list(islice(cycle(MODELS), count))
    needed = needed_bytes(models, alone)
    start, steady = in_lane(models)
    _, stock = peaks(models)
    return [
        Figure(f"{count}_needed_MiB", needed / MIB, "MiB"),
        Figure(f"{count}_MiB", steady / MIB, "MiB"),
        Figure(f"{count}_ratio", steady / needed, target=1.05),
        Figure(f"{count}_start_MiB", start / MIB, "MiB"),
        Figure(f"{count}_stock_MiB", stock / MIB, "MiB"),
        Figure(f"{count}_stock_ratio", stock / needed),
    ]


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    alone = {model: needs(model) for model in MODELS}
    figures = [*figures_of_needs(alone)]
    for count in COUNTS:
        figures += figures_of(count, alone)
    return publish("memory", figures)


if __name__ == "__main__":
    sys.exit(main())
