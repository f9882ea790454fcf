"""Device time among real processes: equal shares, users before notebooks, no debt for the early."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from jupyter_gpushare._core import policies
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy
from jupyter_gpushare.wire.snapshot import DeviceView

from ..broker.processes import NOBODY, Child, needs_root

ANOTHER = 65533
FEW_SECONDS = (2.0, 10.0)  # of the device: a late comer's debt of two is still seen after ten
DUEL_SECONDS = (20.0, 20.0)
HONEST = str(ANOTHER)
USERS = ("nobody", HONEST)
thorough = pytest.mark.thorough  # tests/core has the other policies in virtual time


def train(settings: Settings, name: str, weight: float) -> None:
    """Iterate for 2 ms each without end."""
    session = Session(settings, name=name, weight=weight)
    session.open()
    while True:
        session.enter()
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        session.boundary()


@pytest.fixture
def trainer(
    settings: Settings, open_to_all: None, child: Callable[..., Child]
) -> Callable[..., None]:
    """Start a training process."""

    def trainer(
        name: str, uid: int = 0, weight: float = 1.0, run: Callable[..., None] = train
    ) -> None:
        child(lambda _: run(settings, name, weight), uid)

    return trainer


def by_session(device: DeviceView) -> dict[str, float]:
    return {view.name: view.device_seconds for view in device.sessions}


def by_user(device: DeviceView) -> dict[str, float]:
    """Closed sessions included."""
    return {user.name: sum(user.used_seconds) for user in device.users}


def becomes(
    settings: Settings,
    names: set[str],
    is_fair: Callable[[dict[str, float]], bool],
    used_by: Callable[[DeviceView], dict[str, float]] = by_session,
    seconds: tuple[float, float] = FEW_SECONDS,
) -> bool:
    """Whether the parts of the device time become fair between these seconds of it, as the broker
    counts it from when all of these train. An early advantage or debt counts to the end."""
    begin: dict[str, float] = {}
    with Client.connect(settings) as client:
        for snapshot in client.watch(0.05):
            used = used_by(snapshot.devices[0])
            if all(used.get(name) for name in names):
                begin = begin or used
                gained = {name: used[name] - begin[name] for name in names}
                total = sum(gained.values())
                is_enough = total >= seconds[0]
                if is_enough and is_fair({name: gained[name] / total for name in names}):
                    return True
                if total >= seconds[1]:
                    return False
    raise AssertionError("unreachable: watch ends by an exception")


def about(
    expected: dict[str, float], tolerance: float = 0.08
) -> Callable[[dict[str, float]], bool]:
    return lambda found: found == pytest.approx(expected, abs=tolerance)


@pytest.mark.system
def test_equal_notebooks_get_equal_time_and_a_late_comer_no_more(
    settings: Settings, trainer: Callable[..., None]
) -> None:
    trainer("early")
    assert becomes(settings, {"early"}, about({"early": 1.0}))
    trainer("late")
    assert becomes(settings, {"early", "late"}, about({"early": 1 / 2, "late": 1 / 2}))


@pytest.mark.system
@needs_root
def test_time_is_shared_over_users_first_and_notebooks_second(
    settings: Settings, trainer: Callable[..., None]
) -> None:
    for name in ("one", "two", "three"):
        trainer(name, uid=NOBODY)
    trainer("alone", uid=ANOTHER)
    names = {"one", "two", "three", "alone"}
    assert becomes(settings, names, lambda found: 0.4 < found["alone"] < 0.6)


def grab(settings: Settings, name: str, weight: float) -> None:
    """A heavy session, always one iteration from its end, with a new session for each turn."""
    while True:
        session = Session(settings, name=name, weight=weight)
        session.open()
        session.enter()
        while session.holding:
            time.sleep(0.002)
            session.declare(1)
            session.boundary()
        session.close()


@pytest.fixture
def duel(trainer: Callable[..., None]) -> Callable[[], None]:
    def duel() -> None:
        for _ in range(4):
            trainer("grabs", uid=NOBODY, weight=1000.0, run=grab)
        trainer("honest", uid=ANOTHER)

    return duel


@pytest.mark.system
@needs_root
@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=() if name == "srtf" else thorough) for name, _ in policies()],
)
def test_a_greedy_user_has_no_more_than_another_user(
    settings: Settings, duel: Callable[[], None], policy: str
) -> None:
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
    duel()
    assert becomes(settings, {*USERS}, lambda found: found[HONEST] > 0.4, by_user)


@thorough
@needs_root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("policy", ["fair", "las", "srtf"])
def test_a_duel_of_two_users_is_even_for_20_seconds(
    settings: Settings, duel: Callable[[], None], policy: str
) -> None:
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
        client.ask(SetPolicy(running_lanes=1))
    duel()
    even = about(dict.fromkeys(USERS, 1 / 2), 0.02)
    assert becomes(settings, {*USERS}, even, by_user, DUEL_SECONDS)
