"""A lane of a GPU under PyTorch's own allocator, each case in a process of its own."""

from __future__ import annotations

import pytest

from ...programs.cells import LANE_CASES
from .conftest import Run, device_name


@pytest.mark.skipif(device_name() == "host", reason="tests/unit/memory has the lane of main memory")
@pytest.mark.parametrize("case", LANE_CASES)
def test_in_a_lane_on_a_gpu(case: str, run: Run) -> None:
    assert run(case, script="lanes.py") == {"held": case}
