"""A process that trains one of the models when it is told, with sharing or without it.

``python -m gpu.trainer NAME MODEL [--stock]`` runs that process: each input line is an order, and
each output line its answer. An error there is the answer, in full, and is raised here.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from process import compute

from jupyter_gpushare.settings import Settings, as_environment

from .places import DEVICE, IS_HOST, IS_REHEARSAL

MIB = 1 << 20
# bytes that survive an iteration, where that is asked
KEPT_BYTES = (4 if IS_REHEARSAL else 64) * MIB
COPY_ROUNDS = 5
FILE_ROUNDS = 3
# A process that has not answered by then is ended, with a traceback of each thread.
ANSWER_SECONDS = 240.0 if IS_REHEARSAL else 60.0


class TrainingFailed(Exception):
    """The process failed; the message is its last output."""


class Trainer:
    """The process, seen from the benchmark that started it. Without `settings` it does not
    share."""

    def __init__(self, settings: Settings | None, name: str, model: str) -> None:
        self.model = model
        command = [sys.executable, "-m", "gpu.trainer", name, model]
        self._process = subprocess.Popen(
            command + ["--stock"] * (settings is None),
            env={**os.environ, **({} if settings is None else as_environment(settings))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def start(self, **order: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the answer to the order before; without one, wait until the process is ready."""
        limit = threading.Timer(ANSWER_SECONDS, self._process.send_signal, [signal.SIGABRT])
        limit.start()
        try:
            said = self._hear()
        finally:
            limit.cancel()
        if "failed" in said:
            raise TrainingFailed(f"{self.model}: {said['failed']}")
        return said

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # otherwise a library has printed something
                return json.loads(line)
        raise TrainingFailed(f"{self.model}: the process ended with {self._process.wait()}")

    def ask(self, **order: Any) -> Any:
        self.start(**order)
        return self.answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def trainers(settings: Settings | None, models: Iterable[str]) -> Iterator[list[Trainer]]:
    """A process for each of the models, ready to train; ended with the block."""
    with ExitStack() as stops:
        started = []
        for number, model in enumerate(models):
            started.append(Trainer(settings, f"{model}-{number}", model))
            stops.callback(started[-1].stop)
        for trainer in started:
            trainer.answer()
        yield started


# --- the process itself -------------------------------------------------------------------------


class Training:
    def __init__(self, model: str, session: Any) -> None:
        from . import models

        self._models = models
        self._session = session
        self._training = models.build(model)
        self._kept: Any = None

    def run(self, iterations: int, load: float = 0.0) -> dict[str, Any]:
        """Run the iterations as a cell has them, each after `load` seconds on the host, which a
        batch takes to load."""
        self._cell_begins()
        self._reset_peak()
        began = time.monotonic()
        for _ in range(iterations):
            compute(load)
            self._training.iterate()
        self._models.synchronize()
        ended = time.monotonic()
        usage = self._usage()
        self._cell_ended()
        return {"began": began, "ended": ended, **usage}

    def turns(self, kept: str, seconds: float) -> dict[str, Any]:
        """Train for `seconds`. Return when each turn arrived, and when the device had done its
        iteration.

        `kept` is the name of what survives each iteration: nothing, the gradients, beside them a
        tensor that Python reaches, or a graph, whose activations only autograd has.
        """
        import jupyter_gpushare as gpushare

        times = []
        end = time.monotonic() + seconds
        for _ in gpushare.iterations(
            itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
        ):
            entered = time.monotonic()
            self._training.iterate()
            KEEP[kept](self)
            self._models.synchronize()
            times.append((entered, time.monotonic()))
        self._kept = None
        return {"times": times}

    def keep_nothing(self) -> None:
        self._kept = None
        self._training.forget_gradients()

    def keep_gradients(self) -> None:
        self._kept = None

    def keep_tensor(self) -> None:
        import torch

        self._kept = torch.ones(KEPT_BYTES // 4, device=self._models.device())

    def keep_graph(self) -> None:
        """Keep four saved activations that Python does not reach."""
        import torch

        width = KEPT_BYTES // 4 // 4
        leaf = torch.ones(width, device=self._models.device(), requires_grad=True)
        self._kept = leaf.exp().exp().exp().exp().sum()

    def page(self, directory: str) -> dict[str, Any]:
        """Page persistent memory out and in again."""
        memory = self._session.memory
        self._models.synchronize()
        began = time.perf_counter()
        size, reason = memory.page_out(directory)
        out = time.perf_counter()
        trouble = memory.page_in() if size else ""
        back = time.perf_counter()
        return {"bytes": size, "reason": reason or trouble, "out": out - began, "in": back - out}

    def copy(self, size: int, directory: str) -> dict[str, float]:
        """Return the seconds of plain copies of as many bytes, also to a file and from it."""
        return {**copies(size, self._models), **file_copies(size, directory)}

    def _cell_begins(self) -> None:
        if self._session is not None:
            from jupyter_gpushare.client.notebook.sharing import cell_begins

            cell_begins()

    def _cell_ended(self) -> None:
        if self._session is not None:
            from jupyter_gpushare.client.notebook.sharing import cell_ended

            cell_ended()

    def _reset_peak(self) -> None:
        import torch

        if not IS_HOST:
            torch.cuda.reset_peak_memory_stats()

    def _usage(self) -> dict[str, int]:
        """Return bytes of PyTorch's allocator; main memory does not matter here."""
        import torch

        if IS_HOST:
            return {"live": 0, "peak": 0, "reserved": 0}
        cuda = torch.cuda
        return {
            "live": cuda.memory_allocated(),
            "peak": cuda.max_memory_allocated(),
            "reserved": cuda.memory_reserved(),
        }


KEEP: dict[str, Callable[[Training], None]] = {
    "nothing": Training.keep_nothing,
    "gradients": Training.keep_gradients,
    "tensor": Training.keep_tensor,
    "graph": Training.keep_graph,
}


def copies(size: int, models: Any) -> dict[str, float]:
    """Return seconds to copy `size` bytes between device and host: the median of each way."""
    import torch

    at_device = torch.ones(size, dtype=torch.uint8, device=models.device())
    found = {}
    for kind in ("pageable", "pinned"):
        can_pin = kind == "pinned" and torch.cuda.is_available()
        at_host = torch.ones(size, dtype=torch.uint8, pin_memory=can_pin)
        for way, to, source in (("out", at_host, at_device), ("in", at_device, at_host)):
            seconds = []
            for _ in range(COPY_ROUNDS):
                models.synchronize()
                began = time.perf_counter()
                to.copy_(source)
                models.synchronize()
                seconds.append(time.perf_counter() - began)
            found[f"{kind}_{way}"] = statistics.median(seconds)
        del at_host
    return found


def file_copies(size: int, directory: str) -> dict[str, float]:
    """Return seconds until the write of a file returns, and seconds to read it afterwards: the
    median of each."""
    content = memoryview(bytearray(size))
    found: dict[str, list[float]] = {"file_out": [], "file_in": []}
    for _ in range(FILE_ROUNDS):
        with tempfile.TemporaryFile(dir=directory) as file:
            began = time.perf_counter()
            file.write(content)
            found["file_out"].append(time.perf_counter() - began)
            file.seek(0)
            began = time.perf_counter()
            file.readinto(content)
            found["file_in"].append(time.perf_counter() - began)
    return {way: statistics.median(seconds) for way, seconds in found.items()}


def main(name: str, model: str, is_stock: bool) -> None:
    import jupyter_gpushare as gpushare

    faulthandler.enable()
    try:
        with nullcontext() if is_stock else gpushare.session(name=name, device=DEVICE) as session:
            training = Training(model, session)
            answer(ready=True)
            for line in sys.stdin:
                order = json.loads(line)
                answer(**getattr(training, order.pop("do"))(**order))
    except BaseException:
        answer(failed=traceback.format_exc())


def answer(**words: Any) -> None:
    print("\n" + json.dumps(words), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name")
    arguments.add_argument("model")
    arguments.add_argument("--stock", action="store_true")
    chosen = arguments.parse_args()
    main(chosen.name, chosen.model, chosen.stock)
