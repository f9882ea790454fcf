"""Blocks of recorded traces fit into few pages; a reference in C++ tests how they are placed.

The traces are replayed as allocation_trace.py of the benchmarks reads them: survivors and blocks
below 64 KiB never come to a lane, so they count neither as live nor as footprint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
from lanes import allocation_trace, allocator

pytestmark = pytest.mark.system  # the program that replays is compiled


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    allocator.build()


def test_traces_exist() -> None:
    assert len(allocation_trace.SHIPPED) == 3


@pytest.mark.parametrize("path", allocation_trace.SHIPPED, ids=allocation_trace.name_of)
def test_a_trace_takes_three_percent_more_than_its_live_bytes_at_most(path: Path) -> None:
    steps = allocation_trace.read(path)
    footprint = allocator.replay("ours", steps).footprint
    assert footprint <= allocator.LARGEST_FOOTPRINT * allocation_trace.peak_bytes(steps)
