"""Habits of people in notebooks give the same losses and weights with sharing on, to the last bit.

Each habit runs in a real kernel without sharing, and in one that shares, beside a neighbour that
overwrites all of the lane at each of its turns; `make faults` has each also alone and beside one
that trains, and in kernels with other allocators and huge pages, of which a few are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.whole.cases import BODIES

from .cells import CELLS
from .environments import ENVIRONMENTS
from .features import FEATURES
from .loops import LOOPS
from .processes import PROCESSES
from .stage import Stage, plain_kernel, stage
from .threads import THREADS
from .tools import TOOLS

pytestmark = pytest.mark.system

HABITS = BODIES | LOOPS | FEATURES | CELLS | THREADS | PROCESSES | TOOLS
# Habits that allocate in their own way, where allocators and huge pages differ most.
ALLOCATING = (
    "outputs_of_all_steps_are_kept",
    "batches_grow_and_shrink",
    "storages_are_resized_and_swapped",
    "short_threads_evaluate_while_a_cell_trains",
    "a_forked_child_trains",
)
# Habits with processes that import PyTorch, in each of which others do the same.
THOROUGH = {
    "a_launcher_spawns_ranks",
    "a_launcher_forks_ranks",
    "ipyparallel_has_engines_that_train",
    "nbclient_runs_a_notebook",
    "nbconvert_runs_a_notebook",
    "papermill_runs_a_notebook",
    "papermill_runs_a_notebook_from_a_thread",
    "nbconvert_is_run_in_a_shell",
    "processes_are_spawned",
    "processes_come_from_a_fork_server",
}
WITHOUT_TURNS = ("without_modules", "no_pytorch_at_all")
# A child that is forked while a thread is inside the malloc of libc_malloc_debug, or the free of
# libtcmalloc_minimal_debug, finds a lock taken that the library does not release in a child, and
# stands for ever: in plain C, one in some dozens of forks beside a thread that allocates.
FORKS = re.compile("fork|num_workers")
STANDS_WITHOUT_SHARING = {
    ("libc_checks", "a_forked_child_trains"),
    *(("tcmalloc_that_checks", habit) for habit, text in HABITS.items() if FORKS.search(text)),
}
COMMON = ("jemalloc", "tcmalloc_that_checks", "huge_pages_of_pytorch")
QUICK, QUICK_HABITS = COMMON[:2], ALLOCATING[:2]


def thorough_but(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Return parameters of which `make test` has the quick ones."""
    marks = {True: (), False: pytest.mark.thorough}
    return [pytest.param(name, marks=marks[name in quick]) for name in names]


@pytest.fixture(scope="module")
def plain() -> Iterator[Callable[[str], Any]]:
    """Return the result of a habit in a kernel that does not share."""
    kernel = plain_kernel()
    yield cache(lambda habit: kernel.run(HABITS[habit]))
    kernel.close()


@pytest.fixture(
    scope="module", params=thorough_but(["alone", "trains", "overwrites"], ["overwrites"])
)
def beside(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as opened:
        yield opened


@pytest.mark.parametrize("habit", thorough_but(HABITS, HABITS.keys() - THOROUGH))
def test_a_habit_gives_the_same_bits_with_sharing_on(
    habit: str, beside: Stage, plain: Callable[[str], Any]
) -> None:
    expected = plain(habit)
    with beside.is_overwritten(habit not in WITHOUT_TURNS):
        assert beside.ours.run(HABITS[habit]) == expected
    beside.neighbour_goes_on()


def pairs() -> Iterator[Any]:
    """Return environments and habits: in the common ones all of them, else those that allocate."""
    for environment in ENVIRONMENTS:
        is_common = environment in COMMON
        for habit in HABITS if is_common else ALLOCATING:
            if (environment, habit) in STANDS_WITHOUT_SHARING:
                continue
            is_quick = environment in QUICK and habit in QUICK_HABITS
            yield pytest.param(environment, habit, marks=() if is_quick else pytest.mark.thorough)


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A notebook in such an environment, beside a neighbour that overwrites the lane."""
    chosen = ENVIRONMENTS[request.param]
    variables = chosen.as_variables()
    with stage("overwrites") as opened:
        opened.ours = opened.kernel("ours", chosen.check, **variables)
        yield opened


@pytest.mark.parametrize(("environment", "habit"), [*pairs()], indirect=["environment"])
def test_a_habit_gives_the_same_bits_in_such_an_environment(
    environment: Stage, habit: str, plain: Callable[[str], Any]
) -> None:
    expected = plain(habit)
    with environment.is_overwritten(habit not in WITHOUT_TURNS):
        assert environment.ours.run(HABITS[habit]) == expected


def test_there_are_at_least_a_hundred_habits() -> None:
    assert len(HABITS) >= 100
