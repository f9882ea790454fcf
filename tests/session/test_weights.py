"""Ten kernels of five users with the weights of the admin's file: real processes, real
user ids."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client

WEIGHTS = {60001: 1, 60002: 1, 60003: 2, 60004: 3, 60005: 5}  # of users by their id
RULES = "".join(f"[users.{uid}]\nweight = {weight}\n" for uid, weight in WEIGHTS.items())
SECONDS = 15.0  # of device time that are shared

pytestmark = [
    pytest.mark.skipif(
        os.getuid() != 0, reason="only root can act as several users, as a hub does"
    ),
    pytest.mark.thorough,  # test_fairness has weights and users of fewer processes
]


def train(settings: Settings, name: str, uid: int) -> None:
    """Iterations without end that wait for a device and leave the cores to the other nine."""
    os.setgid(uid)
    os.setuid(uid)
    session = Session(settings, name=name)
    session.open()
    while True:
        session.enter()
        time.sleep(0.004)
        session.boundary()


@pytest.fixture
def broker(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the broker with the rules, and turns so short that each gets many of them in the time
    of a test."""
    (tmp_path / "rules.toml").write_text(RULES)
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(tmp_path / "rules.toml"))
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "0.05")
    with Client.connect(settings, "tests"):
        os.chmod(Path(settings.socket).parent, 0o711)
        os.chmod(settings.socket, 0o666)


@pytest.fixture
def kernels(settings: Settings, broker: None) -> Iterator[None]:
    children = []
    for uid in WEIGHTS:
        for name in "ab":
            if (child := os.fork()) == 0:
                try:
                    train(settings, f"{name} of {uid}", uid)
                finally:
                    os._exit(1)
            children.append(child)
    yield
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def shares(settings: Settings) -> dict[str, float]:
    """Return each user's part of the next seconds of device time in which all ten train."""
    begin: dict[str, float] = {}
    with Client.connect(settings) as client:
        for snapshot in client.watch(0.05):
            views = snapshot.devices[0].sessions
            if len(views) < 2 * len(WEIGHTS) or not all(view.device_seconds for view in views):
                continue
            used: defaultdict[str, float] = defaultdict(float)
            for view in views:
                used[view.user] += view.device_seconds
            begin = begin or used
            gained = {user: used[user] - begin[user] for user in used}
            if (total := sum(gained.values())) >= SECONDS:
                return {user: seconds / total for user, seconds in gained.items()}
    raise AssertionError("a watch does not end")


def test_users_get_their_part_within_3_percent_of_the_rule(
    settings: Settings, kernels: None
) -> None:
    rule = {str(uid): weight / sum(WEIGHTS.values()) for uid, weight in WEIGHTS.items()}
    assert shares(settings) == pytest.approx(rule, abs=0.03)
