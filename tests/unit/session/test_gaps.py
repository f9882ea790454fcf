"""A notebook that loads its next batch leaves the device to the others meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.client.session.gaps import LEAST_SECONDS, MOVES, WANTED_SECONDS, Gaps
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

from .conftest import Process

LOADING = 2 * LEAST_SECONDS
ITERATIONS = 10
TRAINS = """
import time
from jupyter_gpushare.client.session.session import Session

session = Session(name="trains")
session.open()
print("is open", flush=True)
while True:
    session.enter()
    time.sleep(0.001)
    session.boundary()
"""


def gaps(*seconds: float) -> tuple[Gaps, float]:
    """Gaps that were that long, after a preemption request, and the time now."""
    made, now = Gaps(), 0.0
    made.note_request(now, until_cell_ends=False)
    for each in seconds:
        made.begin(now)
        now += each
        made.end(now)
    return made, now


@pytest.mark.parametrize(
    ("seconds", "is_worth"),
    [
        ((), False),
        ((LOADING,), False),
        ((0.0, LOADING), False),
        ((LOADING, LOADING), True),
        ((LOADING, LOADING, 0.0), False),
    ],
)
def test_the_gap_ahead_is_taken_to_be_like_the_two_before_it(
    seconds: tuple[float, ...], is_worth: bool
) -> None:
    made, now = gaps(*seconds)
    assert made.is_worth_a_turn(now, seconds_to_move=0.0) == is_worth
    assert not made.is_worth_a_turn(now, seconds_to_move=2 * LOADING / MOVES)
    assert not made.is_worth_a_turn(now + WANTED_SECONDS, seconds_to_move=0.0)
    made.forget()
    assert not made.is_worth_a_turn(now, seconds_to_move=0.0)


def iterate(session: Session) -> bool:
    """One iteration, and the loading after it; returns whether the turn is kept meanwhile."""
    session.enter()
    session.boundary()
    is_kept = session.holding
    time.sleep(LOADING)
    return is_kept


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_turns_go_back_before_each_gap_while_others_want_the_device(
    policy: str, settings: Settings, opened: Callable[..., Session], run: Callable[..., Process]
) -> None:
    """Nothing asks for them then: they are far shorter than a quantum. Under `fifo` a cell keeps
    its turn over its gaps."""
    mine = opened("mine")
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
    iterate(mine)
    assert run(TRAINS).line() == "is open"
    if policy == "fair":
        while iterate(mine):
            pass
    assert [iterate(mine) for _ in range(ITERATIONS)] == [policy == "fifo"] * ITERATIONS
