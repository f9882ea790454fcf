"""What people do in notebooks gives the same losses and weights with sharing on, to the last bit.

Each habit runs in a real kernel without sharing, and in one that shares: alone, beside a neighbour
that trains, and beside one that overwrites all of the lane at each of its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from .cells import CELLS
from .loops import LOOPS
from .processes import PROCESSES
from .stage import Stage, plain_kernel, stage
from .threads import THREADS

HABITS = LOOPS | CELLS | THREADS | PROCESSES


@pytest.fixture(scope="module")
def plain() -> Iterator[Callable[[str], Any]]:
    """The result of a habit in a kernel that does not share."""
    kernel = plain_kernel()
    yield cache(lambda habit: kernel.run(HABITS[habit]))
    kernel.close()


@pytest.fixture(scope="module", params=["alone", "trains", "overwrites"])
def beside(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as opened:
        yield opened


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_gives_the_same_bits_with_sharing_on(
    habit: str, beside: Stage, plain: Callable[[str], Any]
) -> None:
    expected = plain(habit)
    overwrites = beside.scribbler.overwrites if beside.scribbler else -1
    assert beside.ours.run(HABITS[habit]) == expected
    assert overwrites < 0 or beside.scribbler is None or beside.scribbler.overwrites > overwrites
    beside.neighbour_goes_on()


def test_there_are_at_least_forty_habits() -> None:
    assert len(HABITS) >= 40
