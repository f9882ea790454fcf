"""One notebook of the benchmarks: a training in its own process, with sharing on or off.

It prints `ready`, and waits for a line with the number of iterations (0: until it is ended). Then
it trains, and prints when it began and ended, by the clock that all processes of the machine share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from process import command, compute

from jupyter_gpushare.settings import Settings, as_environment

MODEL = "perceptron"  # about 10 ms an iteration
LOADING = "loading perceptron"  # and before each of them about as long for its batch
LOAD_SECONDS = 0.01


class Trainer:
    """Such a process, seen from the benchmark that started it. Without `settings` it does not
    share. Its idle OpenMP threads sleep, or, with `spins`, spin for a moment as they do by default.
    Another `program` chooses its training by itself."""

    def __init__(
        self,
        settings: Settings | None,
        name: str,
        model: str = MODEL,
        spins: bool = False,
        program: Sequence[str] = (),
    ) -> None:
        this = ["training", name, model] + ["--stock"] * (settings is None)
        ours = {} if settings is None else as_environment(settings)
        waits = {} if spins else {"OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            command(*(program or this)),
            env={**os.environ, **ours, **waits},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def is_ready(self) -> None:
        """Wait until it has its data and, with sharing on, is registered at the broker."""
        self._hear()

    def start(self, amount: float) -> None:
        """The number of iterations, or the default of its program."""
        assert self._process.stdin is not None
        print(amount, file=self._process.stdin, flush=True)

    def ended(self) -> tuple[float, float]:
        """Return when the training began and ended, or the two figures that its program tells."""
        first, second = self._hear()
        return first, second

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def trainers(
    settings: Settings | None, models: Iterable[str], spins: bool = False
) -> Iterator[list[Trainer]]:
    """Start a process for each of the models, ready to train; they end with the block."""
    with ExitStack() as stops:
        started = []
        for number, model in enumerate(models):
            started.append(Trainer(settings, f"notebook-{number}", model, spins))
            stops.callback(started[-1].stop)
        for trainer in started:
            trainer.is_ready()
        yield started


def loaded(batches: Iterable[int]) -> Iterator[int]:
    """Compute on the host before each batch, as a data loader without workers does."""
    for batch in batches:
        compute(LOAD_SECONDS)
        yield batch


def train(name: str, model: str, sharing: bool) -> None:
    from models import TRAININGS

    import jupyter_gpushare as gpushare

    iterate = TRAININGS[MODEL if model == LOADING else model]()
    iterations = gpushare.iterations if sharing else iter
    with gpushare.session(name=name) if sharing else nullcontext():
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            count = int(line)
            began = time.monotonic()
            batches = range(count) if count else itertools.count()
            for _ in iterations(loaded(batches) if model == LOADING else batches):
                iterate()
            print(json.dumps([began, time.monotonic()]), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name")
    arguments.add_argument("model")
    arguments.add_argument("--stock", action="store_true")
    chosen = arguments.parse_args()
    train(chosen.name, chosen.model, not chosen.stock)
