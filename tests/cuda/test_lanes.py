"""Several lanes on the fake GPU: they merge and split while notebooks train in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

from ..polling import until

if TYPE_CHECKING:
    from jupyter_gpushare.settings import Settings
    from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

    from .conftest import Process, Run, Start

PROGRAM = "trainings.py"
SMALL, LARGE = 32, 96  # channels; an iteration of the second needs three times as much

Members = Callable[[], list[int]]


@pytest.fixture
def members(look: Callable[[], Snapshot]) -> Members:
    """How many notebooks each lane has."""
    return lambda: sorted(len(lane.members) for device in look().devices for lane in device.lanes)


@pytest.fixture
def allow(broker: Settings) -> Callable[[int], None]:
    """How many lanes may run at the same time."""

    def allow(count: int) -> None:
        with Client.connect(broker, "tests") as client:
            client.ask(SetPolicy(running_lanes=count))

    return allow


@pytest.fixture
def in_two_lanes(
    start: Start, allow: Callable[[int], None], members: Members
) -> list[tuple[Process, int]]:
    """Two that train at the same time, each in a lane of its own, and their channels."""
    allow(2)
    started = [(start(PROGRAM, "shared", f"of {n}", n), n) for n in (SMALL, LARGE)]
    for line in ("opened", "in the lane"):
        for process, _ in started:
            assert process.says() == line
            process.go_on()
    until(lambda: members() == [1, 1])
    return started


def test_notebooks_whose_lanes_merge_and_split_come_to_the_same_as_alone(
    in_two_lanes: list[tuple[Process, int]],
    allow: Callable[[int], None],
    members: Members,
    sessions: Callable[[], dict[str, SessionView]],
    run: Run,
) -> None:
    for lanes, expected in ((1, [2]), (2, [1, 1]), (1, [2])):
        allow(lanes)
        until(lambda expected=expected: members() == expected)
        before = {name: view.iterations for name, view in sessions().items()}
        until(
            lambda before=before: all(
                sessions()[name].iterations > before[name] + 5 for name in before
            )
        )
    for process, width in in_two_lanes:
        process.go_on()
        assert process.says() == "done"
        process.go_on()
        said = process.answer()
        assert said == run(PROGRAM, "plain", width, len(said["losses"]))
