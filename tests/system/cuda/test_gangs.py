"""A notebook that computes on two fake GPUs at once, with DataParallel, beside one on each."""

from __future__ import annotations

import pytest

from ...conftest import Sessions
from ...polling import until
from .conftest import SMALL, TRAININGS, Ends, GoesOn, Process, Start

# The broker ends after all processes.
pytestmark = pytest.mark.usefixtures("two_gpus", "settings")
OTHERS = ("on 0", "on 1")


@pytest.fixture
def all_in_turn(start: Start, sessions: Sessions) -> tuple[Process, list[Process]]:
    """A gang in the midst of an iteration, and processes on one GPU each that wait for it."""
    gang = start(TRAININGS, "gang", "gang", SMALL)
    others = [start(TRAININGS, "shared", f"on {n}", SMALL, f"cuda:{n}") for n in range(2)]
    assert [process.says() for process in (gang, *others)] == ["opened"] * 3
    for process in others:
        process.go_on()
    for process in others:
        assert process.says() == "in the lane"
        process.go_on()
    gang.go_on()
    assert gang.says() == "in an iteration"
    until(lambda: [sessions()[name].state for name in OTHERS] == ["waiting"] * 2)
    return gang, others


def test_a_gang_and_the_notebooks_beside_it_come_to_the_same_as_without_sharing(
    all_in_turn: tuple[Process, list[Process]], goes_on: GoesOn, ends_as_alone: Ends
) -> None:
    gang, others = all_in_turn
    gang.go_on()
    goes_on("gang", *OTHERS)
    ends_as_alone(gang, SMALL, True)
    for process in others:
        ends_as_alone(process, SMALL)
