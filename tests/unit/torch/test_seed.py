"""The search for the smallest segment that an iteration's tensors fit into."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.client.torch.lanes.seed import Seed

UNIT = 8


def searched(seed: Seed, in_use: int, fits: Callable[[int], bool], extra: int, first: int) -> int:
    """Try sizes until they do not change; an iteration with a segment that is too small gets
    `extra` bytes beside it. Return the bytes of all segments of the last iteration."""
    size = 0
    for _ in range(64):
        last, size = size, seed.next(first)
        taken = seed.ended(size, in_use, size if fits(size) else size + extra, 0)
        if size == last:
            return taken
    raise AssertionError("the search does not end")


@given(
    in_use=st.integers(1, 200).map(lambda n: n * UNIT),
    holes=st.integers(0, 50).map(lambda n: n * UNIT),
    extra=st.integers(1, 60).map(lambda n: n * UNIT),
    first=st.integers(1, 300).map(lambda n: n * UNIT),
)
def test_the_smallest_segment_is_found(in_use: int, holes: int, extra: int, first: int) -> None:
    seed = Seed(UNIT)
    needed = in_use + holes
    assert searched(seed, in_use, lambda size: size >= needed, extra, first) == needed


def test_smaller_iterations_take_as_many_holes() -> None:
    seed = Seed(UNIT)
    searched(seed, 800, lambda size: size >= 880, 64, 800)
    assert seed.ended(880, 400, 880, 0) == 480
    assert seed.next(0) == 880


def test_larger_iterations_begin_a_new_search() -> None:
    seed = Seed(UNIT)
    searched(seed, 800, lambda size: size >= 880, 64, 800)
    assert searched(seed, 1600, lambda size: size >= 1680, 64, 0) == 1680


@pytest.mark.parametrize("beside", [40, 120])
def test_segments_of_other_streams_lie_beside(beside: int) -> None:
    seed = Seed(UNIT)
    sizes = []
    for _ in range(20):
        sizes.append(seed.next(800))
        assert seed.ended(sizes[-1], 800, max(sizes[-1], 800 - beside), beside) >= 800
    assert sizes[-1] == sizes[-2] == 800 - beside
