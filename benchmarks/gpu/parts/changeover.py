"""The time of a context switch to another notebook, with and without survivors.

Two sessions both want the turn all the time, and each gives it away after one iteration. A context
switch lasts from when the device has done the one's iteration to when the other may begin its own;
survivors have left the lane by then. The survivors are none, the gradients, or one more tensor that
Python reaches, which are moved; or a graph that only autograd reaches, whose chunks become private.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import traceback
from typing import Any

from measure import broker, percentile

from ..places import DEVICE, IS_HOST, IS_REHEARSAL, figure, say
from ..trainer import KEEP, KEPT_BYTES, MIB, Trainer, trainers

REHEARSED = 2.0 if IS_HOST else 20.0  # the fake GPU takes long to learn demands
SECONDS = REHEARSED if IS_REHEARSAL else 6.0  # in which both take turns
WARM_UP = (
    10 if IS_REHEARSAL else 40
)  # turns in which demands are learned; those of the lane's first use are among them
NAMES = {
    "nothing": "",
    "gradients": "gradients_",
    "tensor": f"tensor_of_{KEPT_BYTES // MIB}_MiB_",
    "graph": f"graph_of_{KEPT_BYTES // MIB}_MiB_",
}
LEAST = 2  # context switches, enough for a percentile
PROMISED_US = 2000  # the 99th percentile, where nothing survives


def change_overs(times: list[list[Any]]) -> list[float]:
    """Return seconds from the end of each turn to the start of the next, where it went across."""
    marked = sorted((*turn, who) for who, turns in enumerate(times) for turn in turns)
    pairs = list(itertools.pairwise(marked))[WARM_UP:]
    across = [later[0] - earlier[1] for earlier, later in pairs if earlier[2] != later[2]]
    if len(across) < LEAST:
        raise RuntimeError(f"the turn went across {len(across)} times in {len(pairs)} turns")
    return across


def measure(kept: str, started: list[Trainer]) -> None:
    for trainer in started:
        trainer.start(do="turns", kept=kept, seconds=SECONDS)
    across = change_overs([trainer.answer()["times"] for trainer in started])
    name = NAMES[kept]
    figure(f"{name}change_overs", len(across))
    figure(f"{name}p50_us", statistics.median(across) * 1e6, "us")
    target = PROMISED_US if kept == "nothing" else None
    figure(f"{name}p99_us", percentile(across, 99) * 1e6, "us", target=target)


def measure_all(left: list[str]) -> None:
    """Measure each kind in `left`. A kind is removed from `left` as it begins, so that a caller
    continues behind it after a failure."""
    given = {"quantum_seconds": 1e-6, "half_life_seconds": 1e-6, "idle_exit_seconds": 5}
    with (
        broker(DEVICE, **given) as (settings, _),
        trainers(settings, ["perceptron"] * 2) as started,
    ):
        while left:
            measure(left.pop(0), started)


def main() -> int:
    failed = 0
    left = list(KEEP)
    while left:
        next_ones = len(left)
        try:
            measure_all(left)
        except Exception:
            say(error=f"before {left}: {traceback.format_exc()}")
            failed = 1
            if len(left) == next_ones:  # not even one could begin
                break
    return failed


if __name__ == "__main__":
    sys.exit(main())
