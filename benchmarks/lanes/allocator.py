"""The block allocator of a lane on recorded traces, beside glibc and a best fit with std::map.

    python benchmarks lanes.allocator [--smallest BYTES] [TRACE.csv ...]

Two figures for each trace and allocator: the footprint over the peak of live bytes, and nanoseconds
per allocation or free. allocation_trace.py says which blocks of a trace come to a lane; replay.cpp
defines the footprint of each allocator. Each run of a trace is a process of its own. The allocators
take turns, and the time is the median over their runs; the time of a run is a median over rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from measure import RESULTS, Figure, publish

from lanes.allocation_trace import SHIPPED, SMALLEST, Step, name_of, peak_bytes, read

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    ROOT / "benchmarks" / "lanes" / "replay.cpp",
    ROOT / "csrc" / "memory" / "common" / "block_allocator.cpp",
)
PROGRAM = RESULTS.parent / "replay"
COMPILER = (os.environ.get("CXX", "c++"), "-std=c++20", "-O2", f"-I{ROOT / 'csrc'}")

ALLOCATORS = ("ours", "glibc", "best_fit")
RUNS = 15
SECONDS = 0.1  # of one run
LARGEST_FOOTPRINT = 1.03  # times the peak of live bytes
LONGEST = 20  # nanoseconds


class Run(NamedTuple):
    footprint: int  # bytes
    nanoseconds: float  # per step


def build() -> None:
    """Compile the program that replays traces; it takes seconds, so it is compiled again
    each time."""
    PROGRAM.parent.mkdir(exist_ok=True)
    subprocess.run([*COMPILER, *SOURCES, "-o", PROGRAM], check=True)


def replay(allocator: str, steps: Sequence[Step]) -> Run:
    lines = "".join(f"{block} {size}\n" for block, size in steps)
    command = (PROGRAM, allocator, str(SECONDS))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    footprint, nanoseconds = done.stdout.split()
    return Run(int(footprint), float(nanoseconds))


def figures_of(trace: str, steps: Sequence[Step]) -> list[Figure]:
    """Return both figures of each allocator; those of ours are compared with promises."""
    runs: dict[str, list[Run]] = {allocator: [] for allocator in ALLOCATORS}
    for _ in range(RUNS):
        for allocator in ALLOCATORS:
            runs[allocator].append(replay(allocator, steps))
    figures = []
    for allocator, results in runs.items():
        footprint = max(run.footprint for run in results) / peak_bytes(steps)
        nanoseconds = statistics.median(run.nanoseconds for run in results)
        promised = allocator == "ours"
        figures += [
            Figure(
                f"{trace}_{allocator}_footprint",
                footprint,
                target=LARGEST_FOOTPRINT if promised else None,
            ),
            Figure(
                f"{trace}_{allocator}_ns", nanoseconds, "ns", target=LONGEST if promised else None
            ),
        ]
    return figures


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("traces", nargs="*", type=Path, default=SHIPPED, metavar="TRACE")
    arguments.add_argument("--smallest", type=int, default=SMALLEST, metavar="BYTES")
    chosen = arguments.parse_args()
    build()
    figures = []
    for path in chosen.traces:
        steps = read(path, chosen.smallest)
        if not steps:
            arguments.error(f"nothing in {path} would come to a lane: see allocation_trace.py")
        figures += figures_of(name_of(path), steps)
    return publish("allocator", figures)


if __name__ == "__main__":
    sys.exit(main())
