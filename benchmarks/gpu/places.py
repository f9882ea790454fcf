"""Where things lie, and how a part of the run says what it found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "benchmarks" / "gpu"
HOME = Path(os.environ.get("GPUSHARE_GPU_HOME", ROOT / "build" / "gpu"))  # all that is made here
TAG = sys.implementation.cache_tag
SITE = HOME / f"site-{TAG}"  # packages that the Python here does not have
FOLDER = ROOT / "build" / "gpu-packages"  # what was brought along
DRIVER = HOME / "driver"  # the program of driver.cpp

DEVICE = os.environ.get("GPUSHARE_GPU_DEVICE", "cuda:0")  # that sessions share; `host` rehearses
IS_REHEARSAL = DEVICE == "host"


def say(**words: object) -> None:
    """One line for run.py: a `figure`, a `fact`, an `error` or a `note`."""
    print(json.dumps(words), flush=True)


def figure(
    name: str, value: float, unit: str = "", target: float | None = None, at_least: bool = False
) -> None:
    """A measured number; `target` is the promise: at most, or `at_least`, so much."""
    bound = {} if target is None else {"target": target, "at_least": at_least}
    say(figure=name, value=value, unit=unit, **bound)


def fact(name: str, holds: bool | None, note: str = "") -> None:
    """Whether something is so; None where it could not be found out, and the note says why."""
    say(fact=name, holds=holds, note=note)
