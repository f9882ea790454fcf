"""Device time of two users among real processes: neither gains anything over the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from jupyter_gpushare._core import policies
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

from ..broker.conftest import Forks
from ..broker.processes import NOBODY, needs_root

ANOTHER = 65533
FEW_SECONDS = (2.0, 10.0)  # of the device
DUEL_SECONDS = (20.0, 20.0)
HONEST = str(ANOTHER)
USERS = ("nobody", HONEST)
thorough = pytest.mark.thorough  # tests/unit/core has the other policies in virtual time


def train(settings: Settings) -> None:
    """Iterate for 2 ms each without end."""
    session = Session(settings, name="honest")
    session.open()
    while True:
        session.enter()
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        session.boundary()


def grab(settings: Settings) -> None:
    """A heavy session that is always one iteration from its end, with a new session for each
    turn."""
    while True:
        session = Session(settings, name="grabs", weight=1000.0)
        session.open()
        session.enter()
        while session.holding:
            time.sleep(0.002)
            session.declare(1)
            session.boundary()
        session.close()


@pytest.fixture
def duel(settings: Settings, open_to_all: None, child: Forks) -> Callable[[SetPolicy], None]:
    """Start the training of one user, and four processes of another that grab, under a policy."""

    def duel(policy: SetPolicy) -> None:
        with Client.connect(settings) as client:
            client.ask(policy)
        for _ in range(4):
            child(lambda _: grab(settings), NOBODY)
        child(lambda _: train(settings), ANOTHER)

    return duel


def becomes(
    settings: Settings,
    is_fair: Callable[[dict[str, float]], bool],
    seconds: tuple[float, float] = FEW_SECONDS,
) -> bool:
    """Whether the users' parts of the device time become fair between these seconds of it. The
    broker counts the time from when both train, closed sessions included. An early advantage or
    debt counts to the end."""
    begin: dict[str, float] = {}
    with Client.connect(settings) as client:
        for snapshot in client.watch(0.05):
            users = snapshot.devices[0].users
            used = {user.name: sum(user.used_seconds) for user in users}
            if all(used.get(name) for name in USERS):
                begin = begin or used
                gained = {name: used[name] - begin[name] for name in USERS}
                total = sum(gained.values())
                is_enough = total >= seconds[0]
                if is_enough and is_fair({name: gained[name] / total for name in USERS}):
                    return True
                if total >= seconds[1]:
                    return False
    raise AssertionError("unreachable: watch ends by an exception")


@pytest.mark.system
@needs_root
@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=() if name == "srtf" else thorough) for name, _ in policies()],
)
def test_a_greedy_user_has_no_more_than_another_user(
    settings: Settings, duel: Callable[[SetPolicy], None], policy: str
) -> None:
    duel(SetPolicy(policy))
    assert becomes(settings, lambda found: found[HONEST] > 0.4)


@thorough
@needs_root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("policy", ["fair", "las", "srtf"])
def test_a_duel_of_two_users_is_even_for_20_seconds(
    settings: Settings, duel: Callable[[SetPolicy], None], policy: str
) -> None:
    duel(SetPolicy(policy, running_lanes=1))
    even = pytest.approx(dict.fromkeys(USERS, 1 / 2), abs=0.02)
    assert becomes(settings, lambda found: found == even, DUEL_SECONDS)
