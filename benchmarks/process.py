"""Common parts of the processes that benchmarks start. It imports little, since some processes
measure their memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent


def command(name: str, *words: str) -> list[str]:
    """Return the command of a process of the benchmark `name`, such as "lanes.needs"."""
    return [sys.executable, str(BENCHMARKS), name, *words]


def compute(seconds: float) -> None:
    """Keep a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
