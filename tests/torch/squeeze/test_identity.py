"""Squeezing changes no bit of any result, whatever a program does."""

from __future__ import annotations

import pytest
import torch

from jupyter_gpushare.client.torch.squeeze import cache
from jupyter_gpushare.client.torch.squeeze.squeeze import Squeeze

from . import programs, tricks
from .conftest import Program, Squeezed, is_same, run

PROGRAMS = [*programs.PROGRAMS, *tricks.TRICKS]
SAID = programs.SAID | tricks.SAID
NOTHING_LEAVES = programs.NOTHING_LEAVES | tricks.NOTHING_LEAVES

# the bytes that an iteration may take, and the pace of the slower tier: see `Squeezed.to`
WAYS = {
    "made anew": (1, 1.0),
    "moved": (1, 0.0),
    "both": (1, None),
    "half of it": (1 << 20, None),
}


THOROUGH = [pytest.param(way, marks=pytest.mark.thorough) for way in ("both", "half of it")]


@pytest.mark.system
@pytest.mark.parametrize("way", ["made anew", "moved", *THOROUGH])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_results_are_the_same_to_the_last_bit(
    program: Program, way: str, squeezed: Squeezed
) -> None:
    stock = run(program)
    with squeezed.to(*WAYS[way]):
        result = run(program)
    assert is_same(result, stock)
    assert bool(squeezed.told) == (program in SAID)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_results_are_the_same_where_no_recipes_are_noted(
    program: Program, squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "TRIED", 0)
    stock = run(program)
    with squeezed.to(1):
        result = run(program)
    assert is_same(result, stock)
    assert squeezed.squeeze.cache.dropped == 0


@pytest.mark.system
@pytest.mark.parametrize(
    "size", [64 << 10, pytest.param(1 << 40, marks=pytest.mark.thorough)], ids=["crossed", "far"]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_results_are_the_same_where_iterations_are_taken_to_be_far_from_the_size(
    program: Program, size: int, squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that is crossed is so in the middle of iterations."""
    monkeypatch.setattr(Squeeze, "_calm_below", lambda _: size // 2)
    stock = run(program)
    with squeezed.to(size, 0.0):
        result = run(program)
    assert is_same(result, stock)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_entries_leave_memory_where_they_may(program: Program, squeezed: Squeezed) -> None:
    with squeezed.to(1, 0.0):
        run(program)
    assert (squeezed.moved > 0) == (program not in NOTHING_LEAVES)
