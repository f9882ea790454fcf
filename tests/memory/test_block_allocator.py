"""Blocks inside a range of pages: against a reference, on recorded traces, and with wrong pages.

The traces are replayed as allocation_trace.py of the benchmarks reads them: survivors and blocks
below 64 KiB never come to a lane, so they count neither as live nor as footprint.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jupyter_gpushare._core_testing import BlockAllocator

PAGES = 200
PAGE_BYTES = 4096
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


allocation_trace = load(BENCHMARKS / "allocation_trace.py")


class AgainstTheReference(RuleBasedStateMachine):
    """The reference has sets of pages, and blocks by their first page."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(PAGES)
        self.free_pages: set[int] = set()
        self.live: dict[int, int] = {}
        self.footprint = 0

    @property
    def live_pages(self) -> set[int]:
        return {page for first, count in self.live.items() for page in range(first, first + count)}

    def longest_free(self) -> int:
        longest = run = 0
        for page in range(PAGES):
            run = run + 1 if page in self.free_pages else 0
            longest = max(longest, run)
        return longest

    def end(self) -> int:
        return max((first + count for first, count in self.live.items()), default=0)

    @rule(first=st.integers(0, PAGES - 1), count=st.integers(1, PAGES))
    def add(self, first: int, count: int) -> None:
        count = min(count, PAGES - first)
        self.blocks.add(first, count)
        self.free_pages |= set(range(first, first + count)) - self.live_pages

    @rule(first=st.integers(0, PAGES - 1), count=st.integers(1, 20))
    def take(self, first: int, count: int) -> None:
        wanted = set(range(first, min(first + count, PAGES)))
        taken = self.blocks.take(first, len(wanted))
        assert taken == (wanted <= self.free_pages)
        if taken:
            self.free_pages -= wanted

    @rule(count=st.integers(1, 60))
    def allocate(self, count: int) -> None:
        first = self.blocks.allocate(count)
        assert (first is not None) == (count <= self.longest_free())
        if first is not None:
            block = set(range(first, first + count))
            assert block <= self.free_pages
            self.free_pages -= block
            self.live[first] = count
            self.footprint = max(self.footprint, first + count)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.live)))
        self.blocks.free(first)
        count = self.live.pop(first)
        self.free_pages |= set(range(first, first + count))

    @rule()
    def free_all(self) -> None:
        for first in list(self.live):
            self.blocks.free(first)
        self.free_pages |= self.live_pages
        self.live.clear()
        assert self.blocks.is_one_block()

    @rule()
    def reset_footprint(self) -> None:
        self.blocks.reset_footprint()
        self.footprint = self.end()

    @invariant()
    def both_agree(self) -> None:
        assert self.blocks.live() == sorted(self.live.items())
        assert [self.blocks.size_of(p) for p in range(PAGES)] == [
            self.live.get(p, 0) for p in range(PAGES)
        ]
        assert self.blocks.used == sum(self.live.values())
        assert self.blocks.available == self.blocks.used + len(self.free_pages)
        assert self.blocks.footprint == self.footprint

    @invariant()
    def no_invariant_is_broken(self) -> None:
        assert self.blocks.is_valid() == ""


TestAgainstTheReference = AgainstTheReference.TestCase
TestAgainstTheReference.settings = settings(stateful_step_count=60, deadline=None)


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


def test_traces_exist() -> None:
    assert len(allocation_trace.SHIPPED) == 3


@pytest.mark.parametrize("page", [-1, 10, 2**32 - 1, 2**64, -(2**64)])
def test_a_page_outside_the_range_is_an_index_error(page: int) -> None:
    blocks = BlockAllocator(10)
    for call in (
        lambda: blocks.add(page, 1),
        lambda: blocks.take(page, 1),
        lambda: blocks.free(page),
        lambda: blocks.size_of(page),
    ):
        with pytest.raises(IndexError, match=f"page {page} lies outside the range of 10 pages"):
            call()


def test_pages_that_end_outside_the_range_are_an_index_error() -> None:
    blocks = BlockAllocator(10)
    for call in (blocks.add, blocks.take):
        with pytest.raises(IndexError, match="4 pages from page 7 on end outside the range"):
            call(7, 4)
    assert blocks.available == 0


@pytest.mark.parametrize("count", [0, -1, 2**32 - 1, 2**64])
def test_a_number_of_pages_that_cannot_be_one_is_a_value_error(count: int) -> None:
    blocks = BlockAllocator(10)
    for call in (
        lambda: blocks.add(0, count),
        lambda: blocks.take(0, count),
        lambda: blocks.allocate(count),
    ):
        with pytest.raises(ValueError, match=f"must be between 1 and .*: {count}"):
            call()


def test_a_range_with_too_many_pages_is_impossible() -> None:
    for count in (-1, 2**32 - 1):
        with pytest.raises(ValueError, match="must be between 0 and"):
            BlockAllocator(count)


def test_a_block_is_freed_once_and_at_its_first_page() -> None:
    blocks = BlockAllocator(10)
    blocks.add(0, 10)
    first = blocks.allocate(4)
    assert first == 0
    with pytest.raises(ValueError, match="no live block begins at page 1"):
        blocks.free(1)
    blocks.free(first)
    with pytest.raises(ValueError, match="no live block begins at page 0"):
        blocks.free(first)
    assert blocks.is_valid() == ""


def test_a_block_that_does_not_fit_is_none() -> None:
    blocks = BlockAllocator(10)
    assert blocks.allocate(1) is None
    blocks.add(0, 10)
    assert blocks.allocate(11) is None
    assert blocks.allocate(10) == 0
