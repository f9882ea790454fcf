"""Ten kernels of five users with the weights of the admin's file: real processes, real
user ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings

from ..broker.processes import Child, needs_root
from .test_fairness import about, becomes, by_user

WEIGHTS = {60001: 1, 60002: 1, 60003: 2, 60004: 3, 60005: 5}  # of users by their id
RULES = "".join(f"[users.{uid}]\nweight = {weight}\n" for uid, weight in WEIGHTS.items())
SECONDS = (15.0, 30.0)  # of device time that are shared

pytestmark = [needs_root, pytest.mark.thorough]  # test_fairness has fewer processes


def train(settings: Settings, name: str, words: object) -> None:
    """Iterations without end that wait for a device and leave the cores to the other nine."""
    session = Session(settings, name=name)
    session.open()
    while True:
        session.enter()
        time.sleep(0.004)
        session.boundary()


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Let the broker have the rules, and turns so short that each session gets many of them in the
    time of a test."""
    (tmp_path / "rules.toml").write_text(RULES)
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(tmp_path / "rules.toml"))
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "0.05")
    return settings


@pytest.mark.usefixtures("open_to_all")
def test_users_get_their_part_within_3_percent_of_the_rule(
    settings: Settings, child: Callable[..., Child]
) -> None:
    for uid in WEIGHTS:
        for name in "ab":
            child(partial(train, settings, f"{name} of {uid}"), uid)
    rule = {str(uid): weight / sum(WEIGHTS.values()) for uid, weight in WEIGHTS.items()}
    assert becomes(settings, {*rule}, about(rule, 0.03), by_user, SECONDS)
