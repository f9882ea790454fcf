"""`python benchmarks` measures every promised figure, each benchmark in a process of its own, and
writes build/bench.json. `python benchmarks turns.handover` runs one benchmark, and passes further
arguments to it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    *("turns.handover", "turns.idle_turn", "turns.alone", "broker.decision"),
    *("lanes.allocator", "lanes.lane", "lanes.survivors", "lanes.memory"),
    *("turns.overcommit", "lanes.paging", "broker.many_sessions", "broker.expected_wait"),
    *("broker.panel", "turns.faults", "turns.fair", "turns.total", "turns.concurrency_tuner"),
    *("squeeze.idle", "cluster.six_jobs", "cluster.service"),
)


def run_all() -> int:
    # Imported here, since a benchmark that measures memory would count these modules.
    from measure import RESULTS, machine

    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine()}) + "\n")
    failed = [
        name for name in BENCHMARKS if subprocess.run([sys.executable, HERE, name]).returncode
    ]
    if failed:
        print(f"bench: {', '.join(failed)} failed", file=sys.stderr)
    return bool(failed)


def run(name: str, *words: str) -> None:
    """Run the benchmark of that name."""
    sys.argv[1:] = words
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        run(*sys.argv[1:])
    else:
        sys.exit(run_all())
