"""`make bench`: every benchmark in a process of its own; results in build/bench.json."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from measure import RESULTS

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    *("handover", "idle_turn", "alone", "decision", "allocator", "lane"),
    *("survivors", "memory", "overcommit", "paging"),
    *("broker", "expected_wait", "panel", "faults", "fair", "total", "concurrency_tuner"),
    *("squeeze_idle", "cluster"),
)


def machine() -> dict[str, object]:
    """Return what a reader must know to read the figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "jupyter_gpushare": version("jupyter_gpushare"),
    }


def main() -> int:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine()}) + "\n")
    failed = [
        name
        for name in BENCHMARKS
        if subprocess.run([sys.executable, HERE / f"{name}.py"]).returncode
    ]
    if failed:
        print(f"bench: {', '.join(failed)} failed", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
