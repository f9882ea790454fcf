"""What is killed while notebooks train on the fake GPU costs no other notebook anything."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ..polling import until

if TYPE_CHECKING:
    from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

    from .conftest import GivenAway, Process, Run, Start

PROGRAM = "trainings.py"
SMALL, LARGE = 32, 96  # channels; an iteration of the second needs three times as much

pytestmark = pytest.mark.usefixtures("broker")  # which ends after all processes


@pytest.fixture
def both_in_the_lane(
    start: Start, sessions: Callable[[], dict[str, SessionView]]
) -> tuple[Process, Process]:
    """Two that train: the first waits for its turn, the second is in the midst of an iteration."""
    first, second = (
        start(PROGRAM, "shared", name, width)
        for name, width in (("first", SMALL), ("second", LARGE))
    )
    assert first.says() == second.says() == "opened"
    first.go_on()
    assert first.says() == "in the lane"
    second.go_on()
    first.go_on()
    assert second.says() == "in the lane"
    until(lambda: sessions()["first"].state == "waiting")
    return first, second


def test_a_holder_that_is_killed_in_an_iteration_leaves_all_it_had_to_the_others(
    both_in_the_lane: tuple[Process, Process],
    run: Run,
    sessions: Callable[[], dict[str, SessionView]],
    given_away: GivenAway,
) -> None:
    first, second = both_in_the_lane
    assert given_away(second.pid).keys() - given_away(first.pid).keys()
    before = sessions()["first"].iterations
    second.end()
    until(lambda: sessions()["first"].iterations > before + 5)
    until(lambda: given_away() == given_away(first.pid))
    is_as_alone(first, SMALL, run)
    until(lambda: given_away() == {})


def test_notebooks_go_on_when_the_broker_is_killed_in_an_iteration(
    both_in_the_lane: tuple[Process, Process],
    run: Run,
    look: Callable[[], Snapshot],
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    killed = look().broker.pid
    os.kill(killed, signal.SIGKILL)
    both_in_the_lane[1].go_on()
    until(lambda: sessions().keys() == {"first", "second"})
    before = sessions()
    until(lambda: all(sessions()[name].iterations > before[name].iterations + 5 for name in before))
    assert look().broker.pid != killed
    for process, width in zip(both_in_the_lane, (SMALL, LARGE), strict=True):
        is_as_alone(process, width, run)


def is_as_alone(process: Process, width: int, run: Run) -> None:
    """It ends, and has come to what it comes to without sharing."""
    process.go_on()
    assert process.says() == "done"
    process.go_on()
    said = process.answer()
    assert said == run(PROGRAM, "plain", width, len(said["losses"]))
