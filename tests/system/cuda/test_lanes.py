"""Several lanes on the fake GPU: they merge and split while notebooks train in them."""

from __future__ import annotations

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

from ...conftest import Look
from ...polling import until
from .conftest import LARGE, SMALL, TRAININGS, Ends, GoesOn, Start


def test_notebooks_whose_lanes_merge_and_split_come_to_the_same_as_alone(
    settings: Settings, start: Start, look: Look, goes_on: GoesOn, ends_as_alone: Ends
) -> None:
    def allow(lanes: int) -> None:
        """Set how many lanes may run at the same time."""
        with Client.connect(settings, "tests") as client:
            client.ask(SetPolicy(running_lanes=lanes))

    def members() -> list[int]:
        """Return how many notebooks each lane has."""
        return sorted(len(lane.members) for device in look().devices for lane in device.lanes)

    allow(2)
    started = [(start(TRAININGS, "shared", f"of {n}", n), n) for n in (SMALL, LARGE)]
    for process, _ in started:  # one is measured before the next begins, which would wait for it
        for line in ("opened", "in the lane"):
            assert process.says() == line
            process.go_on()
    until(lambda: members() == [1, 1])
    for lanes, expected in ((1, [2]), (2, [1, 1]), (1, [2])):
        allow(lanes)
        until(lambda expected=expected: members() == expected)
        goes_on(*(f"of {n}" for _, n in started))
    for process, width in started:
        ends_as_alone(process, width)
