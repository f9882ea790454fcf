"""The processes that benchmarks start. It imports little: some of them measure their memory."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent


def command(name: str, *words: str) -> list[str]:
    """Return the command of a process of the benchmark `name`, such as "lanes.needs"."""
    return [sys.executable, str(BENCHMARKS), name, *words]
