"""Blocks of recorded traces fit into few pages; a reference in C++ tests how they are placed.

The traces are replayed as allocation_trace.py of the benchmarks reads them: survivors and blocks
below 64 KiB never come to a lane, so they count neither as live nor as footprint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jupyter_gpushare._core_testing import BlockAllocator

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
from lanes import allocation_trace

PAGE_BYTES = 4096


def test_traces_exist() -> None:
    assert len(allocation_trace.SHIPPED) == 3


@pytest.mark.parametrize("path", allocation_trace.SHIPPED, ids=allocation_trace.name_of)
def test_a_trace_takes_three_percent_more_than_its_live_bytes_at_most(path: Path) -> None:
    steps = allocation_trace.read(path)
    blocks, firsts = BlockAllocator(1 << 20), dict[int, int]()
    blocks.add(0, blocks.pages)
    for block, size in steps:
        if size:
            first = blocks.allocate(-(-size // PAGE_BYTES))
            assert first is not None
            firsts[block] = first
        else:
            blocks.free(firsts.pop(block))
    assert blocks.is_one_block()
    assert blocks.is_valid() == ""
    assert blocks.footprint * PAGE_BYTES <= 1.03 * allocation_trace.peak_bytes(steps)
