"""Iterations keep their rules under PyTorch's own allocator, with a neighbour that overwrites the
lane after each turn."""

from __future__ import annotations

import pytest

from .conftest import Run

PROGRAM = "iterations.py"
NO_CONTEXT = {"JUPYTER_GPUSHARE_CUDA_CONTEXT_BYTES": "0"}


@pytest.mark.parametrize("lazy", ["0", "1"], ids=["eager", "lazy"])
@pytest.mark.parametrize(
    "case",
    [
        "a_lane_may_grow_shrink_and_go",
        "what_overflows_is_private_and_demanded",
        "holes_between_the_blocks_of_an_iteration_are_demanded_too",
        "a_captured_graph_has_memory_of_its_own",
        "what_a_captured_graph_uses_never_moves",
        "what_finds_no_room_to_move_keeps_its_place",
        "what_is_out_comes_back_as_soon_as_there_is_room",
        "what_could_not_follow_leaves_out_what_cannot_come_back",
        "a_look_at_a_pool_keeps_its_id",
    ],
)
def test_of_iterations(case: str, lazy: str, run: Run) -> None:
    run(PROGRAM, case, FAKE_CUDA_LAZY=lazy, **NO_CONTEXT)


def test_a_process_whose_cuda_has_failed_gives_the_lane_up_as_it_is(run: Run) -> None:
    """A thread finds the failure when it waits for the work, as on a GPU."""
    case = "a_process_whose_cuda_has_failed_gives_the_lane_up_as_it_is"
    run(PROGRAM, case, FAKE_CUDA_LAZY="1", **NO_CONTEXT)
