"""If a size cannot be held, the user is told, and the floor takes its place; if that gains nothing,
nothing moves."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from jupyter_gpushare.client.torch.demand.estimator import WINDOW
from jupyter_gpushare.client.torch.squeeze.squeeze import BELOW_FLOOR, FUTILE, LATEST, MISSES
from jupyter_gpushare.format import size

from ....programs.networks import mlp, train, vectors
from .conftest import Squeezed, is_same, run

pytestmark = [
    pytest.mark.usefixtures("counted"),
    pytest.mark.unsqueezed("which sizes are held"),
]
MIB = 1 << 20
STEPS = 12
NEAR = 1.3  # of a target: memory that is being written is still there


def deep() -> torch.nn.Module:
    """A model whose operations each need a small part of what an iteration needs."""
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)] * 4
    return mlp(*layers)


def wide() -> torch.nn.Module:
    """A model in which one operation needs nearly all that an iteration needs."""
    return torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.Linear(2048, 4))


def trained(model: torch.nn.Module, count: int = 1024, steps: int = STEPS) -> Any:
    return train(model, vectors(count), steps, torch.optim.SGD(model.parameters(), lr=0.1))


def deeply() -> Any:
    return trained(deep())


def widely() -> Any:
    return trained(wide())


def test_the_floor_takes_the_place_of_a_size_below_it(squeezed: Squeezed) -> None:
    stock, memory = run(deeply), squeezed.memory
    with squeezed.to(MIB, 0.0):
        assert is_same(run(deeply), stock)
        floor, found = memory.squeeze_floor, memory.squeezing
        (said,) = squeezed.told
        assert re.fullmatch(BELOW_FLOOR.format(floor=r"[\d.]+ MiB", asked="1.0 MiB"), said)
        before = squeezed.moved
        trained(deep(), steps=STEPS)
    assert found is not None
    assert found.whole_bytes is not None
    assert found.reached_bytes is not None
    assert found.slowdown is not None
    assert (found.asked_bytes, found.floor_bytes) == (MIB, floor)
    near = (floor + found.whole_bytes) / 2  # what is being written is still in memory
    assert MIB < found.reached_bytes <= near
    assert floor < FUTILE * found.whole_bytes
    assert found.slowdown > 1
    assert 0 < found.written_bytes <= before
    assert 0 < squeezed.moved - before <= STEPS * found.whole_bytes
    assert memory.estimator.needed() <= near
    assert len(squeezed.told) == 1


def test_nothing_moves_where_that_would_bring_hardly_anything(squeezed: Squeezed) -> None:
    stock, memory = run(widely), squeezed.memory
    with squeezed.to(MIB, 0.0):
        assert is_same(run(widely), stock)
        assert not squeezed.squeeze.is_needed
        written, found = squeezed.moved, memory.squeezing
        trained(wide(), steps=2 * STEPS)
    assert squeezed.moved == written
    assert found is not None
    assert written <= MISSES * (found.whole_bytes or 0)  # the iterations before that is known
    assert (found.slowdown, found.reached_bytes) == (1.0, found.whole_bytes)
    (said,) = squeezed.told
    assert said == (
        f"nothing is moved for the size of 1.0 MiB: iterations take {size(found.whole_bytes or 0)},"
        f" and cannot be squeezed below {size(found.floor_bytes or 0)}"
    )
    assert memory.demand().ephemeral_bytes >= (found.whole_bytes or 0)


def test_what_is_not_known_is_not_told(squeezed: Squeezed) -> None:
    memory = squeezed.memory
    assert memory.squeezing is None
    with squeezed.to(MIB, 0.0):
        before = memory.squeezing
        trained(deep(), steps=MISSES + 1)
        after = memory.squeezing
        assert "is learned in one of the next" in memory.squeeze_progress
    for found in (before, after):
        assert found is not None
        assert (found.asked_bytes, found.whole_bytes, found.slowdown) == (MIB, None, None)
    assert before is not None
    assert after is not None
    assert (before.reached_bytes, before.written_bytes) == (None, 0)
    assert (after.reached_bytes or 0) > MIB
    assert after.written_bytes > 0


def test_a_size_that_is_held_is_not_recorded(squeezed: Squeezed) -> None:
    with squeezed.to(8 * MIB, 0.0):
        trained(deep(), steps=2 * LATEST)
    found = squeezed.memory.squeezing
    assert found is not None
    assert 0 < (found.reached_bytes or 0) <= NEAR * 8 * MIB
    assert found.floor_bytes is found.slowdown is None
    assert squeezed.told == []


def test_iterations_in_which_nothing_can_move_do_not_count(squeezed: Squeezed) -> None:
    model, (x, _) = deep(), vectors(1024)
    with squeezed.to(MIB, 0.0):
        for _ in range(STEPS):
            with torch.no_grad():
                model(x)
            squeezed.boundaries.reset()
        assert squeezed.memory.squeeze_progress == ""
    assert squeezed.told == []


def test_a_training_that_shrinks_is_held_at_its_own_floor(squeezed: Squeezed) -> None:
    with squeezed.to(MIB // 2, 0.0):
        model = deep()
        trained(model)
        large = squeezed.memory.squeeze_floor
        trained(model, 256, WINDOW + STEPS)
        assert 0 < squeezed.memory.squeeze_floor < large / 2
        assert (reached := squeezed.memory.squeezing)
        assert (reached.reached_bytes or 0) <= NEAR * squeezed.memory.squeeze_floor


def test_a_training_that_grows_is_recorded_anew(squeezed: Squeezed) -> None:
    with squeezed.to(MIB, 0.0):
        trained(wide())
        assert squeezed.squeeze.is_futile
        trained(deep(), 2048)
        assert not squeezed.squeeze.is_futile
        assert squeezed.squeeze.target == squeezed.memory.squeeze_floor
    assert len(squeezed.told) == 2


def test_another_size_above_the_floor_is_held(squeezed: Squeezed) -> None:
    memory = squeezed.memory
    with squeezed.to(MIB, 0.0):
        trained(deep())
        wanted = memory.squeeze_floor + MIB
    with squeezed.to(wanted, 0.0):
        trained(deep())
        found = memory.squeezing
    assert found is not None
    assert MIB < (found.reached_bytes or 0) <= NEAR * wanted
    assert found.floor_bytes == memory.squeeze_floor
    assert (found.slowdown or 0) > 1
