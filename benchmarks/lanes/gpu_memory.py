"""GPU memory of 1, 2, 4 and 8 notebooks in one lane, against what they need and against stock,
under PyTorch's own caching allocator on a GPU that is main memory:
``tests/system/cuda/run benchmarks lanes.gpu_memory``, once `make test-cuda` has built that.

Each is a process that trains a CNN or a transformer, in turn. Kernels compute nothing there, so
memory alone is measured: the bytes that the device has given away. `ratio` compares their peak with
the sum of the persistent bytes and the largest ephemeral bytes, by PyTorch's own statistics of one
stock iteration. `stock_MiB` is the same without sharing, all at once. `demanded_ratio` is what the
broker keeps for the notebooks, over that peak. Below 0.95 the broker would admit more than there is
room for, and above 1 it keeps room that no notebook uses: a demand is the most of a notebook's
recent iterations, and not all have their most at one time. Calls of the driver are those that
allocate, map, or wait for all work.

Nothing here is a figure of a card, so build/bench.json has it as `fake_gpu_memory`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from measure import Figure, broker, publish, sampled
from training import Trainer

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from lanes.memory import MIB, figures_of_needs, needed_bytes
from lanes.needs import Needs

MODELS = ("cnn", "transformer")
COUNTS = (1, 2, 4, 8)
LEARNING, STEADY = 24, 6  # iterations of each
COUNTED = (b"cuMem", b"cuCtxSynchronize")
CAPACITY = 24 << 30
UUID = "GPU-01010101-0101-0101-0101-010101010101"  # that the fake GPU has


# --- one training


def training(model: str) -> Callable[[], None]:
    """Return one iteration on data that is on the GPU already."""
    import torch
    from torch import nn

    if model == "cnn":
        blocks = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
        net = nn.Sequential(
            *blocks, nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16384, 512)
        )
        x = torch.empty(64, 3, 64, 64, device="cuda")
    else:
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 512, 64))
        x = torch.empty(32, 64, 512, device="cuda")
    net.cuda()
    optimizer = torch.optim.Adam(net.parameters())

    def iterate() -> None:
        if model == "cnn":  # gradients live into the next iteration; those of the other do not
            optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        if model != "cnn":
            optimizer.zero_grad()

    return iterate


def calls() -> int:
    count = ctypes.CDLL("libcuda.so.1").fake_driver_calls
    count.restype = ctypes.c_size_t
    return sum(count(prefix) for prefix in COUNTED)


def child(model: str, is_shared: bool) -> None:
    """Train as many iterations as each line of the input says, and give the turn back; answer what
    `Training.answer` tells."""
    import torch

    import jupyter_gpushare as gpushare
    from jupyter_gpushare.client.notebook.sharing import cell_begins, cell_ended

    torch.set_num_threads(1)
    with gpushare.session(name=model, device="cuda:0") if is_shared else nullcontext():
        iterate = training(model)
        for line in sys.stdin:
            cell_begins()
            iterate()  # it may wait for the turn
            at_first = calls()
            for _ in range(int(line) - 1):
                iterate()
            at_last = calls()
            cell_ended()
            stays, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            answer = [at_last - at_first, calls() - at_last, stays, most - stays]
            print(json.dumps(answer), flush=True)


class Training(Trainer):
    """A process of `child`."""

    def __init__(self, model: str, settings: Settings | None) -> None:
        words = ("lanes.gpu_memory", model, str(int(settings is not None)))
        super().__init__(settings, model, spins=True, program=words)

    def answer(self) -> list[int]:
        """Return the calls in the iterations but for the first, and at the end of the turn, then
        persistent and ephemeral bytes."""
        answer: list[int] = self._hear()
        return answer

    def end(self) -> None:
        """Wait until it has ended by itself."""
        self._process.communicate()


# --- many


@contextmanager
def trainings(models: list[str], settings: Settings | None = None) -> Iterator[list[Training]]:
    started = [Training(model, settings) for model in models]
    try:
        yield started
    finally:
        for each in started:
            each.end()


def train(started: list[Training], iterations: int) -> list[list[int]]:
    for each in started:
        each.start(iterations)
    return [each.answer() for each in started]


def given_away() -> int:
    """Return the bytes of the device that no process could have now."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def steady_peak(started: list[Training]) -> tuple[int, list[list[int]]]:
    """Return the most that the device had given away, and the answers."""
    with sampled(given_away) as samples:
        answers = train(started, STEADY)
    return max(samples), answers


def needs(model: str) -> Needs:
    """Return the persistent bytes of one stock training, and the most that an iteration has beside
    them."""
    with trainings([model]) as started:
        train(started, LEARNING)
        ((_, _, persistent, ephemeral),) = train(started, STEADY)
    return Needs(persistent, ephemeral)


def demanded(client: Client) -> int:
    """Return the bytes that the broker keeps for its sessions and lanes."""
    (device,) = (each for each in client.look().devices if each.name == "cuda:0")
    return device.persistent_bytes + sum(lane.bytes for lane in device.lanes)


class Shared(NamedTuple):
    """The memory of trainings that share: the peak of the device's bytes, the bytes that the broker
    keeps for them, and calls of the driver, in a steady loop and at the end of a turn."""

    peak: int
    demanded: int
    in_loop: int
    at_end: int


def shared(models: list[str]) -> Shared:
    with broker("cuda:0") as (settings, client), trainings(models, settings) as started:
        for _ in range(2):
            train(started, LEARNING)
        peak, answers = steady_peak(started)
        kept = demanded(client)
    return Shared(peak, kept, max(a[0] for a in answers), max(a[1] for a in answers))


def calls_of(model: str) -> list[Figure]:
    found = shared([model])
    bound = 3 if model != "cnn" else None  # where nothing survives
    return [
        Figure(f"{model}_calls_in_{STEADY - 1}_iterations", found.in_loop, target=0),
        Figure(f"{model}_calls_at_the_end_of_a_turn", found.at_end, target=bound),
    ]


def figures_of(count: int, alone: dict[str, Needs]) -> list[Figure]:
    models = list(islice(cycle(MODELS), count))
    needed = needed_bytes(models, alone)
    found = shared(models)
    with trainings(models) as started:
        train(started, LEARNING)
        stock, _ = steady_peak(started)
    return [
        Figure(f"{count}_needed_MiB", needed / MIB, "MiB"),
        Figure(f"{count}_MiB", found.peak / MIB, "MiB"),
        Figure(f"{count}_ratio", found.peak / needed, target=1.05),
        Figure(f"{count}_stock_MiB", stock / MIB, "MiB"),
        Figure(f"{count}_over_stock", found.peak / stock),
        Figure(f"{count}_demanded_ratio", found.demanded / found.peak, target=0.95, at_least=True),
        Figure(f"{count}_demanded_at_most", found.demanded / found.peak, target=1.0),
    ]


def main() -> int:
    if "FAKE_CUDA_BYTES" not in os.environ:
        sys.exit("gpu_memory.py counts calls of the fake GPU: tests/system/cuda/run runs it")
    os.environ["FAKE_CUDA_KERNELS"] = ""
    os.environ["FAKE_CUDA_BYTES"] = str(CAPACITY)
    os.environ["JUPYTER_GPUSHARE_CUDA_CONTEXT_BYTES"] = "0"
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        os.environ["FAKE_CUDA_HOST"] = Path(home).name
        nvml = Path(home) / "nvml"
        nvml.write_text(f"gpu {UUID} {CAPACITY} 0 NVIDIA L4\n")
        os.environ["FAKE_NVML"] = str(nvml)
        alone = {model: needs(model) for model in MODELS}
        figures = [*figures_of_needs(alone)]
        for model in MODELS:
            figures += calls_of(model)
        for count in COUNTS:
            figures += figures_of(count, alone)
    return publish("fake_gpu_memory", figures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], sys.argv[2] == "1")
    else:
        sys.exit(main())
