"""Squeezing changes no bit of any result, whatever a program does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpushare.client.torch.squeeze import cache, distance

from ....programs import graphs, learning, surroundings, tensors
from .conftest import Squeezed, assert_nothing_is_left, is_same, run

PROGRAMS = learning.PROGRAMS | graphs.PROGRAMS | tensors.PROGRAMS | surroundings.PROGRAMS
# Programs with forwards that stay as they are, which the user is told.
SAID = {
    "anomaly_detection",
    "modes_of_the_user",
    "scripted_and_traced_modules",  # the forward that is traced
    "hooks_of_the_user",
    "a_compiled_module",
    "checkpoints_of_the_user",
    "jacobians_and_tangents",
    "checkpoints_within_checkpoints",
    "a_model_compiled_to_run_as_it_is",
}
# Programs from which nothing leaves memory, since each uses something that keeps squeezing away.
NOTHING_LEAVES = {
    "anomaly_detection",
    "modes_of_the_user",
    "hooks_of_the_user",
    "a_compiled_module",
    "sparse_gradients",
    "subclasses_of_tensors",
    "a_saved_tensor_changed_in_place_is_refused",  # it stays: its change has to be noticed
    "jacobians_and_tangents",
    "a_model_compiled_to_run_as_it_is",
    "a_fork_in_the_midst_of_a_forward",  # for the rest of the iteration all stays
}

# the bytes that an iteration may take, and the pace of the slower tier: see `Squeezed.to`
WAYS = {"recomputed": (1, 1.0), "moved": (1, 0.0), "both": (1, None), "half of it": (1 << 20, None)}
THOROUGH = [pytest.param(way, marks=pytest.mark.thorough) for way in WAYS if way != "recomputed"]
SIZES = [64 << 10, pytest.param(1 << 40, marks=pytest.mark.thorough)]
each_program = pytest.mark.parametrize("program", PROGRAMS)


@functools.cache
def stock(program: str) -> Any:
    """The result of an unsqueezed program; it is run once."""
    return run(PROGRAMS[program])


@pytest.fixture(scope="module", autouse=True)
def results_are_released() -> Iterator[None]:
    """Free the results, since other modules measure the memory of the process."""
    yield
    stock.cache_clear()


@pytest.mark.system
@pytest.mark.parametrize("way", ["recomputed", *THOROUGH])
@each_program
def test_the_results_are_the_same_to_the_last_bit(
    program: str, way: str, squeezed: Squeezed
) -> None:
    expected = stock(program)
    with squeezed.to(*WAYS[way]):
        result = run(PROGRAMS[program])
    assert is_same(result, expected)
    assert bool(squeezed.told_of_trouble) == (program in SAID)
    assert way != "moved" or (squeezed.moved > 0) == (program not in NOTHING_LEAVES)
    assert_nothing_is_left()


@pytest.mark.system
@pytest.mark.parametrize("size", SIZES, ids=["crossed", "far"])
@each_program
def test_the_results_are_the_same_where_iterations_are_far_from_the_size_until_one_exceeds_it(
    program: str, size: int, squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks are installed between two iterations."""
    monkeypatch.setattr(distance, "FAR_AFTER", 0)
    expected = stock(program)
    with squeezed.to(size, 0.0):
        result = run(PROGRAMS[program])
    assert is_same(result, expected)
    assert_nothing_is_left()


@pytest.mark.thorough
@each_program
def test_the_results_are_the_same_where_no_recipes_are_noted(
    program: str, squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "TRIED", 0)
    expected = stock(program)
    with squeezed.to(1):
        result = run(PROGRAMS[program])
    assert is_same(result, expected)
    assert squeezed.squeeze.cache.dropped == 0
