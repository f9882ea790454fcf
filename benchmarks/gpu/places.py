"""Where files lie, and how a part of the run reports its results."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "benchmarks" / "gpu"
# for all files that are made here
HOME = Path(os.environ.get("GPUSHARE_GPU_HOME", ROOT / "build" / "gpu"))
TAG = sys.implementation.cache_tag
SITE = HOME / f"site-{TAG}"  # packages that the Python here does not have
FOLDER = ROOT / "build" / "gpu-packages"  # packages that were brought along
DRIVER = HOME / "driver"  # the program of driver.cpp

DEVICE = os.environ.get("GPUSHARE_GPU_DEVICE", "cuda:0")  # that sessions share
IS_HOST = DEVICE == "host"  # main memory, which has no calls of CUDA
IS_FAKE_GPU = "FAKE_CUDA_BYTES" in os.environ  # $PYTHON is tests/system/cuda/run
IS_REHEARSAL = "GPUSHARE_GPU_REHEARSAL" in os.environ  # in miniature, and no figure counts
REHEARSED = 4  # times as long may all last in a rehearsal, where there are only a few cores


def say(**words: object) -> None:
    """One line for run.py: a `figure`, a `fact`, an `error` or a `note`."""
    print(json.dumps(words), flush=True)


def figure(
    name: str, value: float, unit: str = "", target: float | None = None, at_least: bool = False
) -> None:
    """Report a measured number; `target` is the promise: at most, or `at_least`, this value."""
    bound = {} if target is None else {"target": target, "at_least": at_least}
    say(figure=name, value=value, unit=unit, **bound)


def fact(name: str, holds: bool | None, note: str = "") -> None:
    """Report whether a fact holds; None if that could not be found out, and the note says why."""
    say(fact=name, holds=holds, note=note)


def status_of(measures: Iterable[tuple[str, Callable[[], None]]]) -> int:
    """Run each measurement by itself, and report an error of one with its label. Return the exit
    status: 1 if there was an error."""
    failed = 0
    for label, measure in measures:
        try:
            measure()
        except Exception:
            say(error=f"{label}{traceback.format_exc()}")
            failed = 1
    return failed
