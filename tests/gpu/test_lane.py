"""A lane of a GPU under PyTorch's own allocator, each case in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import answer, device_name

if TYPE_CHECKING:
    from .conftest import Start

CASES = (
    "tensors_of_all_threads_and_streams_land_in_the_lane",
    "what_python_reaches_moves_and_keeps_its_bits",
    "what_autograd_alone_reaches_is_promoted_and_keeps_its_bits",
    "a_dropped_pool_gives_its_idle_segments_back",
    "what_does_not_fit_is_made_elsewhere",
    "emptied_caches_do_no_harm",
    "a_thousand_iterations_take_no_more_than_ten",
)


@pytest.mark.skipif(device_name() == "host", reason="tests/memory has the lane of main memory")
@pytest.mark.parametrize("case", CASES)
def test_in_a_lane_on_a_gpu(case: str, start: Start) -> None:
    assert answer(start(case, script="lanes.py")) == {"held": case}
