"""A notebook that computes on two fake GPUs at once, with DataParallel, beside one on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ..polling import until

if TYPE_CHECKING:
    from jupyter_gpushare.wire.snapshot import SessionView

    from .conftest import GivenAway, Process, Run, Start

PROGRAM = "trainings.py"
WIDTH = 32  # channels

# The broker ends after all processes.
pytestmark = pytest.mark.usefixtures("two_gpus", "broker")
Sessions = Callable[[], dict[str, "SessionView"]]


@pytest.fixture
def all_in_turn(start: Start, sessions: Sessions) -> tuple[Process, list[Process]]:
    """A gang in the midst of an iteration, and those on one GPU each, which wait for it."""
    gang = start(PROGRAM, "gang", "gang", WIDTH)
    others = [start(PROGRAM, "shared", f"on {n}", WIDTH, f"cuda:{n}") for n in range(2)]
    assert [process.says() for process in (gang, *others)] == ["opened"] * 3
    for process in others:
        process.go_on()
    for process in others:
        assert process.says() == "in the lane"
        process.go_on()
    gang.go_on()
    assert gang.says() == "in an iteration"
    until(lambda: [sessions()[f"on {n}"].state for n in range(2)] == ["waiting"] * 2)
    return gang, others


def is_as_alone(process: Process, run: Run, *more: bool) -> None:
    """It ends, and has come to what it comes to without sharing."""
    process.go_on()
    assert process.says() == "done"
    process.go_on()
    said = process.answer()
    assert said == run(PROGRAM, "plain", WIDTH, len(said["losses"]), *more)


def test_a_gang_and_the_notebooks_beside_it_come_to_the_same_as_without_sharing(
    all_in_turn: tuple[Process, list[Process]], run: Run, sessions: Sessions
) -> None:
    gang, others = all_in_turn
    gang.go_on()
    before = {name: view.iterations for name, view in sessions().items()}
    until(lambda: all(sessions()[name].iterations > before[name] + 5 for name in before))
    is_as_alone(gang, run, True)
    for process in others:
        is_as_alone(process, run)


def test_a_gang_that_is_killed_in_an_iteration_leaves_both_gpus_to_the_others(
    all_in_turn: tuple[Process, list[Process]],
    run: Run,
    sessions: Sessions,
    given_away: GivenAway,
) -> None:
    gang, others = all_in_turn
    assert all(given_away(gang.pid, gpu=gpu) for gpu in range(2))
    before = {name: view.iterations for name, view in sessions().items()}
    gang.end()
    until(lambda: all(sessions()[f"on {n}"].iterations > before[f"on {n}"] + 5 for n in range(2)))
    for gpu, process in enumerate(others):
        until(lambda gpu=gpu, its=process: given_away(gpu=gpu) == given_away(its.pid, gpu=gpu))
    for process in others:
        is_as_alone(process, run)
