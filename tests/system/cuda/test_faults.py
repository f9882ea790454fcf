"""A process that is killed while notebooks train on the fake GPU costs no other notebook
anything."""

from __future__ import annotations

import os
import signal

import pytest

from ...conftest import Look, Sessions
from ...polling import until
from .conftest import LARGE, SMALL, TRAININGS, Ends, GivenAway, GoesOn, Process, Start

pytestmark = pytest.mark.usefixtures("settings")  # its broker ends after all processes


@pytest.fixture
def both_in_the_lane(start: Start, sessions: Sessions) -> tuple[Process, Process]:
    """Two processes that train: the first waits for its turn, the second is in the midst of an
    iteration."""
    first, second = (
        start(TRAININGS, "shared", name, width)
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
    goes_on: GoesOn,
    ends_as_alone: Ends,
    given_away: GivenAway,
) -> None:
    first, second = both_in_the_lane
    assert given_away(second.pid).keys() - given_away(first.pid).keys()
    second.end()
    goes_on("first")
    until(lambda: given_away() == given_away(first.pid))
    ends_as_alone(first, SMALL)
    until(lambda: given_away() == {})


def test_notebooks_go_on_when_the_broker_is_killed_in_an_iteration(
    both_in_the_lane: tuple[Process, Process],
    goes_on: GoesOn,
    ends_as_alone: Ends,
    look: Look,
    sessions: Sessions,
) -> None:
    killed = look().broker.pid
    os.kill(killed, signal.SIGKILL)
    both_in_the_lane[1].go_on()
    until(lambda: sessions().keys() == {"first", "second"})
    goes_on("first", "second")
    assert look().broker.pid != killed
    for process, width in zip(both_in_the_lane, (SMALL, LARGE), strict=True):
        ends_as_alone(process, width)
