"""Device time among real processes: equal shares, users before notebooks, no debt for the early."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare._core import policies
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

NOBODY, ANOTHER = 65534, 65533
SHARED_SECONDS = 4.0
DUEL_SECONDS = 20.0
thorough = pytest.mark.thorough  # tests/core has the other policies in virtual time


def train(settings: Settings, name: str, uid: int, weight: float) -> None:
    """Iterate for 2 ms each without end, as `uid`."""
    if uid:
        os.setgid(uid)
        os.setuid(uid)
    session = Session(settings, name=name, weight=weight)
    session.open()
    while True:
        session.enter()
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        session.boundary()


@pytest.fixture
def trainer(settings: Settings, broker_pid: int) -> Iterator[Callable[..., None]]:
    """Start a training process; forked without exec, since other users may not run our Python."""
    os.chmod(Path(settings.socket).parent, 0o711)
    os.chmod(settings.socket, 0o666)
    children: list[int] = []

    def trainer(
        name: str, uid: int = 0, weight: float = 1.0, run: Callable[..., None] | None = None
    ) -> None:
        child = os.fork()
        if child == 0:
            try:
                run(settings, uid) if run else train(settings, name, uid, weight)
            finally:
                os._exit(1)
        children.append(child)

    yield trainer
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def shares(
    settings: Settings, names: set[str], seconds: float = SHARED_SECONDS
) -> dict[str, float]:
    """Return each session's part of the next `seconds` of device time in which all of them
    train."""
    begin: dict[str, float] = {}
    with Client.connect(settings) as client:
        for snapshot in client.watch(0.05):
            used = {view.name: view.device_seconds for view in snapshot.devices[0].sessions}
            if set(used) >= names and all(used[name] > 0 for name in names):
                begin = begin or used
                gained = {name: used[name] - begin[name] for name in names}
                if sum(gained.values()) >= seconds:
                    return {name: gained[name] / sum(gained.values()) for name in names}
    raise AssertionError("unreachable: watch ends by an exception")


@pytest.mark.system
def test_equal_notebooks_get_equal_time_and_a_late_comer_no_more(
    settings: Settings, trainer: Callable[..., None]
) -> None:
    trainer("early")
    shares(settings, {"early"}, 2.0)
    trainer("late")
    assert shares(settings, {"early", "late"}) == pytest.approx(
        {"early": 1 / 2, "late": 1 / 2}, abs=0.08
    )


@pytest.mark.system
def test_weights_share_out_the_time_of_a_user(
    settings: Settings, trainer: Callable[..., None]
) -> None:
    trainer("light")
    trainer("heavy", weight=3.0)
    assert shares(settings, {"light", "heavy"}) == pytest.approx(
        {"light": 1 / 4, "heavy": 3 / 4}, abs=0.08
    )


@pytest.mark.system
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as several users, as a hub does")
def test_time_is_shared_over_users_first_and_notebooks_second(
    settings: Settings, trainer: Callable[..., None]
) -> None:
    for name in ("one", "two", "three"):
        trainer(name, uid=NOBODY)
    trainer("alone", uid=ANOTHER)
    found = shares(settings, {"one", "two", "three", "alone"}, 2 * SHARED_SECONDS)
    assert found["alone"] == pytest.approx(1 / 2, abs=0.1)


@pytest.mark.system
@pytest.mark.parametrize(
    "policy", ["fair", *(pytest.param(name, marks=thorough) for name in ("las", "srtf", "pack"))]
)
def test_no_session_starves_under_a_policy_that_shares(
    settings: Settings, trainer: Callable[..., None], policy: str
) -> None:
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
    for name in ("a", "b", "c"):
        trainer(name)
    assert min(shares(settings, {"a", "b", "c"}).values()) > 0.15


def grab(settings: Settings, uid: int) -> None:
    """A heavy session, always one iteration from its end, with a new session for each turn."""
    os.setgid(uid)
    os.setuid(uid)
    while True:
        session = Session(settings, name="grabs", weight=1000.0)
        session.open()
        session.enter()
        while session.holding:
            time.sleep(0.002)
            session.declare(1)
            session.boundary()
        session.close()


@pytest.mark.system
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as several users, as a hub does")
@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=() if name == "srtf" else thorough) for name, _ in policies()],
)
def test_a_greedy_user_has_no_more_than_another_user(
    settings: Settings, trainer: Callable[..., None], policy: str
) -> None:
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
        for _ in range(4):
            trainer("grabs", uid=NOBODY, run=grab)
        trainer("honest", uid=ANOTHER)
        began: tuple[float, float] | None = None
        for snapshot in client.watch(0.05):
            used = {view.name: view.device_seconds for view in snapshot.devices[0].sessions}
            if set(used) < {"grabs", "honest"} or not used.get("honest"):
                continue
            began = began or (time.monotonic(), used["honest"])
            if (seconds := time.monotonic() - began[0]) >= SHARED_SECONDS:
                assert (used["honest"] - began[1]) / seconds > 0.4
                return


@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as several users, as a hub does")
@pytest.mark.parametrize("policy", ["fair", "las", "srtf"])
def test_a_duel_of_two_users_is_even_for_20_seconds(
    settings: Settings, trainer: Callable[..., None], policy: str
) -> None:
    """Both users' time on the device is as the broker counts it, closed sessions included."""
    with Client.connect(settings) as client:
        client.ask(SetPolicy(policy))
        client.ask(SetPolicy(running_lanes=1))
        for _ in range(4):
            trainer("grabs", uid=NOBODY, run=grab)
        trainer("honest", uid=ANOTHER)
        before: dict[str, float] = {}
        for snapshot in client.watch(0.05):
            used = {user.name: sum(user.used_seconds) for user in snapshot.devices[0].users}
            if len(used) < 2 or not all(used.values()):
                continue
            before = before or used
            gained = [used[name] - before[name] for name in sorted(used)]
            if sum(gained) >= DUEL_SECONDS:
                assert 0.48 <= gained[0] / sum(gained) <= 0.52
                return
