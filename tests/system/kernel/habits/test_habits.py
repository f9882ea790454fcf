"""Habits of people in notebooks give the same losses and weights with sharing on, to the last bit.

A habit runs in a real kernel without sharing, and in one that shares, beside a neighbour that
overwrites all of the lane at each of its turns. One habit for each mechanism has no marker.
`make faults` has all others. It also runs every habit alone, beside a neighbour that trains, and in
kernels with other allocators and huge pages; a few of these have no marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.programs.cells import BODIES

from .cells import CELLS
from .environments import ENVIRONMENTS
from .features import FEATURES
from .loops import LOOPS
from .stage import Stage, plain_kernel, stage
from .threads import THREADS
from .tools import TOOLS

pytestmark = pytest.mark.system

HABITS = BODIES | LOOPS | FEATURES | CELLS | THREADS | TOOLS
# Habits that allocate in their own way, where allocators and huge pages differ most.
ALLOCATING = (
    "outputs_of_all_steps_are_kept",
    "batches_grow_and_shrink",
    "storages_are_resized_and_swapped",
    "short_threads_evaluate_while_a_cell_trains",
    "a_forked_child_trains",
)
# One habit for each mechanism of ours that others share; tests/system/whole has all of BODIES, and
# habits that compute nothing on the device any more.
MECHANISMS = {
    "the_optimizer_steps_in_backward": "optimizers step within backward",
    "the_update_is_written_by_hand": "no optimizer ends an iteration",
    "gradient_penalty_by_double_backward": "there are several backward passes, and one of another",
    "segments_are_checkpointed": "forward runs within backward",
    "what_autograd_saves_goes_through_hooks": "what autograd saves is elsewhere",
    "an_ensemble_is_one_function": "modules are functions under transforms",
    "a_compiled_model_meets_new_shapes": "modules are compiled",
    "a_tensor_of_a_class_of_its_own": "operations are dispatched to Python",
    "outputs_of_all_steps_are_kept": "tensors survive their iteration",
    "batches_grow_and_shrink": "the demand changes",
    "storages_are_resized_and_swapped": "storages change under their tensors",
    "memory_is_shared_and_swapped_under_a_tensor": "memory of a survivor becomes shared",
    "numpy_views_are_written_later": "memory of a survivor is lent to others, which write to it",
    "finalizers_compute": "forward runs while objects end",
    "a_step_is_left_in_the_middle_and_goes_on_in_the_next_cell": "a graph survives its cell",
    "an_expression_with_its_graph_is_displayed": "IPython keeps tensors",
    "alarms_ring_in_the_loop": "exceptions come between any two instructions",
    "every_call_is_traced": "a tracer sees our calls",
    "sharing_is_turned_off_and_on_in_mid_training": "sharing ends and begins between cells",
    "sharing_is_turned_on_while_a_thread_trains": "sharing ends and begins within iterations",
    "magics_that_run_code": "cells run within cells",
    "short_threads_evaluate_while_a_cell_trains": "other threads allocate within an iteration",
    "two_models_train_in_two_threads": "two threads have iterations",
    "a_thread_trains_while_cells_run": "a thread outlives its cell",
    "autograd_runs_in_a_thread_of_its_own": "an iteration has several threads",
    "two_tasks_take_turns_at_awaits": "tasks have iterations",
    "a_forked_child_trains": "a child has what the lane had",
    "a_forked_child_shares_by_itself": "a child is a session of its own",
    "a_child_is_forked_in_the_middle_of_an_iteration": "a child is forked within an iteration",
    "a_cell_is_a_script_of_its_own": "other programs are started",
    "a_script_that_shares_is_run_after_training": "other programs are started and share",
}
WITHOUT_TURNS = ("without_modules", "no_pytorch_at_all")
# A child that is forked while a thread is inside the malloc of libc_malloc_debug, or the free of
# libtcmalloc_minimal_debug, finds a lock taken that the library does not release in a child, and
# stands forever: in plain C, one in some dozens of forks beside a thread that allocates.
FORKS = re.compile("fork|num_workers")
STANDS_WITHOUT_SHARING = {
    ("libc_checks", "a_forked_child_trains"),
    *(("tcmalloc_that_checks", habit) for habit, text in HABITS.items() if FORKS.search(text)),
}
COMMON = ("jemalloc", "tcmalloc_that_checks", "huge_pages_of_pytorch")
QUICK, QUICK_ALLOCATING = COMMON[:2], ALLOCATING[:2]


def thorough_but(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Return parameters; those that are not quick run only in `make faults`."""
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


@pytest.mark.parametrize("habit", thorough_but(HABITS, MECHANISMS))
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
            is_quick = environment in QUICK and habit in QUICK_ALLOCATING
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


def test_each_mechanism_has_a_habit() -> None:
    assert HABITS.keys() >= MECHANISMS.keys()
