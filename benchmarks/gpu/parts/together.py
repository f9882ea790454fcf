"""Two and four notebooks on one GPU: time over one after the other, and the card's memory.

Stock PyTorch comes first: each training alone, which is `serial`, and then all at once. Then all
take turns with sharing. Busy notebooks do nothing but train; half-busy ones spend as long on the
host, loading a batch, as the device takes for it. Every ratio is relative to stock's serial time.

Memory is the peak that NVML reports as in use while all train, once they have learned their
demands, less the memory in use before. `needed` is the sum of the persistent memory, each process's
CUDA context included, and the largest ephemeral memory, all measured in stock processes that run
alone.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from typing import Any, NamedTuple

from measure import broker, sampled

from ..models import MODELS
from ..places import DEVICE, IS_HOST, IS_REHEARSAL, figure, say, status_of
from ..trainer import MIB, Trainer, trainers

COUNTS = (2,) if IS_REHEARSAL else (2, 4)
KINDS = ("gpt",) if IS_REHEARSAL else MODELS
WARM_UP = 12
SECONDS = 0.2 if IS_REHEARSAL else 2.0  # of each training alone
LEAST = 3  # iterations
SAMPLE_SECONDS = 0.01
PROMISED = {"busy": 1.03, "half_busy": 0.85}  # over serial
PROMISED_MEMORY = 1.05


class Needs(NamedTuple):
    """One training alone: seconds of an iteration, and bytes."""

    pace: float
    live: int
    peak: int
    reserved: int


def used_bytes() -> int:
    """Return the used bytes of the card, by all processes."""
    if IS_HOST:
        return 0
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def alone(trainer: Trainer) -> Needs:
    trainer.ask(do="run", iterations=WARM_UP)
    done = trainer.ask(do="run", iterations=WARM_UP)
    pace = (done["ended"] - done["began"]) / WARM_UP
    return Needs(pace, done["live"], done["peak"], done["reserved"])


def iterations(needs: Needs) -> int:
    return max(LEAST, int(SECONDS / needs.pace))


def serial(started: list[Trainer], needs: list[Needs], load: bool) -> float:
    """Return the sum of the seconds of each alone."""
    spans = [trainer.ask(**order(each, load)) for trainer, each in zip(started, needs, strict=True)]
    return float(sum(span["ended"] - span["began"] for span in spans))


def at_once(started: list[Trainer], needs: list[Needs], load: bool) -> float:
    """Return seconds from the start of the first to the end of the last."""
    for trainer, each in zip(started, needs, strict=True):
        trainer.start(**order(each, load))
    spans = [trainer.answer() for trainer in started]
    return float(max(s["ended"] for s in spans) - min(s["began"] for s in spans))


def order(needs: Needs, load: bool) -> dict[str, Any]:
    count = iterations(needs)
    return {"do": "run", "iterations": count, "load": needs.pace if load else 0.0}


LOADS = {"busy": False, "half_busy": True}


def measure(count: int) -> None:
    models = list(itertools.islice(itertools.cycle(KINDS), count))
    before = used_bytes()
    with trainers(None, models) as started:
        needs = [alone(trainer) for trainer in started]
        contexts = used_bytes() - before - sum(each.reserved for each in needs)
        for model, each in dict(zip(models, needs, strict=True)).items():
            figure(f"{model}_P_MiB", each.live / MIB, "MiB")
            figure(f"{model}_E_MiB", (each.peak - each.live) / MIB, "MiB")
        times = {name: serial(started, needs, load) for name, load in LOADS.items()}
        with sampled(used_bytes, SAMPLE_SECONDS) as stock:
            for name, load in LOADS.items():
                figure(f"{count}_{name}_serial", times[name], "s")
                ratio = at_once(started, needs, load) / times[name]
                figure(f"{count}_{name}_stock_at_once", ratio)
    needed = contexts + sum(each.live for each in needs)
    needed += max(each.peak - each.live for each in needs)
    if max(stock) > before:
        figure(f"{count}_contexts_MiB", contexts / MIB, "MiB")
    share(count, models, needs, times, before, needed, max(stock) - before)


def share(
    count: int,
    models: list[str],
    needs: list[Needs],
    times: dict[str, float],
    before: int,
    needed: int,
    stock: int,
) -> None:
    with (
        broker(DEVICE, idle_exit_seconds=5) as (settings, client),
        trainers(settings, models) as started,
    ):
        with sampled(used_bytes, SAMPLE_SECONDS) as learning:
            for trainer in started:
                trainer.ask(do="run", iterations=WARM_UP)
            at_once(started, needs, False)
        for name, load in LOADS.items():
            with sampled(used_bytes, SAMPLE_SECONDS) as steady:
                ratio = at_once(started, needs, load) / times[name]
            figure(f"{count}_{name}_ratio", ratio, target=PROMISED[name])
        devices = [device for device in client.look().devices if device.sessions]
        for device in devices:
            lanes = [lane.bytes // MIB for lane in device.lanes]
            demands = {
                s.name: [s.persistent_bytes // MIB, s.ephemeral_bytes // MIB]
                for s in device.sessions
            }
            say(note={f"{count} at the broker, MiB": {"lanes": lanes, "P and E": demands}})
    if not stock:  # main memory, and the fake GPU
        say(note="memory is skipped: NVML does not tell here what is in use")
        return
    for name, size in (("learning", max(learning) - before), ("stock", stock)):
        figure(f"{count}_{name}_MiB", size / MIB, "MiB")
    figure(f"{count}_needed_MiB", needed / MIB, "MiB")
    figure(f"{count}_MiB", (max(steady) - before) / MIB, "MiB")
    figure(f"{count}_memory_ratio", (max(steady) - before) / needed, target=PROMISED_MEMORY)
    figure(f"{count}_stock_memory_ratio", stock / needed)


def main() -> int:
    return status_of((f"{count}: ", partial(measure, count)) for count in COUNTS)


if __name__ == "__main__":
    sys.exit(main())
