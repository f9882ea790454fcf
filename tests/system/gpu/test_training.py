"""Losses and weights on a GPU are the same with sharing on and off, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.settings import Settings

from ...programs.cells import CASES_ON_GPU
from .conftest import Run, Start, answer, device_name, is_rehearsal

QUICK = (
    *("cnn", "kept_graphs_and_gradients", "a_captured_graph"),
    *("out_of_memory", "paged_out_between_cells"),
)
NAMES = QUICK if device_name() == "host" or is_rehearsal() else tuple(CASES_ON_GPU)
WHOLE_ITERATIONS = ("cnn", "transformer", "kept_graphs_and_gradients", "growing_batches")


def results(said: Any) -> Any:
    return said["losses"], said["digest"]


def need_a_lane(said: Any) -> None:
    """Skip where this version has no lanes on this device at all."""
    lane = said["lane"]
    if lane["kind"] == "NoLane":
        pytest.skip(f"there are no lanes on this device: {lane['how']}")
    assert lane["trouble"] == ""


@pytest.mark.parametrize("case", NAMES)
def test_training_comes_to_the_same(case: str, run: Run) -> None:
    shared, stock = run(case, is_shared=True), run(case)
    assert results(shared) == results(stock)


def test_iterations_have_their_activations_in_the_lane(run: Run) -> None:
    said = run("cnn", is_shared=True)
    need_a_lane(said)
    assert said["lane"]["bytes"] > 0
    for seen in said["seen"].values():  # forward, and backward, which has threads of its own
        assert seen[-1], "tensors of the last iteration lie outside of the lane"


@pytest.mark.parametrize("cases", [WHOLE_ITERATIONS[:count] for count in (1, 2, 3, 4)], ids=len)
def test_notebooks_in_one_lane_with_one_that_overwrites_it_come_to_the_same(
    cases: tuple[str, ...], start: Start, run: Run, settings: Settings
) -> None:
    if device_name() == "host" and len(cases) > 1:
        pytest.skip("tests/system/whole has this on main memory")
    if is_rehearsal() and len(cases) > 1:
        pytest.skip("a rehearsal has one notebook beside the one that overwrites")
    scribbler = start("scribbler", settings)
    running = [start(case, settings) for case in cases]
    said = [answer(process) for process in running]
    turns = answer(scribbler)["turns"]
    for case, found in zip(cases, said, strict=True):
        assert results(found) == results(run(case)), case
    assert turns > 2
    assert any(found["lane"]["waited_seconds"] > 0 for found in said)


def test_a_notebook_that_is_out_of_memory_fails_alone(
    start: Start, run: Run, settings: Settings
) -> None:
    greedy, other = (start(case, settings) for case in ("out_of_memory", "cnn"))
    assert results(answer(greedy)) == results(run("out_of_memory"))
    assert results(answer(other)) == results(run("cnn"))


@pytest.mark.system
def test_memory_that_is_paged_out_comes_back_to_its_addresses(run: Run) -> None:
    said = run("paged_out_between_cells", is_shared=True)
    size, reason = said["paged"]
    if reason.startswith("nothing can be paged out: "):
        pytest.skip(reason)
    assert reason == ""
    assert size > 0
