"""One notebook of the benchmarks `fair` and `total`: trains with sharing on, in its own process.

Says `ready`, waits for a line that says how many iterations (0: until it is ended), trains, and
says when it began and ended on the clock that all processes of the machine have in common.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_gpushare.settings import Settings, as_environment

WIDTH = 512  # about 10 ms an iteration


class Trainer:
    """Such a process, seen from the benchmark that started it."""

    def __init__(self, settings: Settings, name: str) -> None:
        command = [sys.executable, __file__, name]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **as_environment(settings), "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear()

    def start(self, iterations: int) -> None:
        assert self._process.stdin is not None
        print(iterations, file=self._process.stdin, flush=True)

    def ended(self) -> tuple[float, float]:
        """When the training began and ended."""
        began, ended = self._hear()
        return began, ended

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def trainers(settings: Settings, count: int) -> Iterator[list[Trainer]]:
    """So many processes, ready to train; ended with the block."""
    started: list[Trainer] = []
    try:
        for number in range(count):
            started.append(Trainer(settings, f"notebook-{number}"))
        yield started
    finally:
        for trainer in started:
            trainer.stop()


def train(name: str) -> None:
    import torch

    import jupyter_gpushare as gpushare

    layers = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(128, WIDTH)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        count = int(line)
        began = time.monotonic()
        with gpushare.session(name=name):
            for _ in gpushare.iterations(range(count) if count else itertools.count()):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        print(json.dumps([began, time.monotonic()]), flush=True)


if __name__ == "__main__":
    train(sys.argv[1])
