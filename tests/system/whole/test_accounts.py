"""The usage of a real session is in the accounts of real brokers, once and complete."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.tools import doctor
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Account, AccountRow, Accounts

from ...conftest import Opened
from .conftest import until_answered

LONG_SECONDS = 1.0  # of a turn: what a broker counts twice, or not at all, is seen
# The most that may be lost while a session returns to the next broker: its message is on its way.
RETURN_SECONDS = 0.5


@pytest.fixture
def session(opened: Opened) -> Session:
    return opened("cnn.ipynb")


def used(settings: Settings) -> AccountRow:
    """Return what all brokers so far have counted of this user."""
    with Client.connect(settings, "tests") as client:
        answer = client.ask(Account(0.0, time.time() + 1, "notebook"))
    assert isinstance(answer, Accounts)
    assert answer.note == ""
    (row,) = answer.rows or [AccountRow("", 0.0, 0.0, 0.0, 0.0, 0)]
    return row


@pytest.mark.system
def test_a_turn_that_outlives_its_broker_is_counted_once_and_whole(
    settings: Settings, session: Session, broker_pid: int
) -> None:
    asked = time.monotonic()
    session.enter()
    begun = time.monotonic()
    until_answered(lambda: used(settings).device_seconds > LONG_SECONDS)
    os.kill(broker_pid, signal.SIGKILL)
    until_answered(lambda: Client.connect(settings, start=False).welcome.pid != broker_pid)
    until_answered(lambda: used(settings).device_seconds > 2 * LONG_SECONDS)
    ended = time.monotonic()
    session.leave()
    until_answered(lambda: used(settings).device_seconds >= ended - begun - RETURN_SECONDS)
    row = used(settings)
    assert row.device_seconds <= time.monotonic() - asked
    assert row.name.endswith(": cnn.ipynb")
    assert row.turns == 1
    (check,) = doctor._accounts(doctor.Installation(settings))
    assert check.state == "ok"


@pytest.mark.system
def test_usage_until_the_end_is_kept_when_broker_and_session_end(
    settings: Settings, session: Session, broker_pid: int
) -> None:
    asked = time.monotonic()
    session.enter()
    begun = time.monotonic()
    until_answered(lambda: used(settings).device_seconds > LONG_SECONDS)
    ended = time.monotonic()
    session.leave()
    session.close()
    os.kill(broker_pid, signal.SIGTERM)
    until_answered(lambda: not Path(f"/proc/{broker_pid}").exists())
    assert ended - begun <= used(settings).device_seconds <= time.monotonic() - asked
    assert stat.S_IMODE(Path(settings.accounts).stat().st_mode) == 0o600


@pytest.mark.system
def test_a_broker_whose_accounts_cannot_be_kept_serves_all_the_same(
    settings: Settings, opened: Opened
) -> None:
    Path(settings.accounts).write_text("no database" * 1000)
    session = opened("cnn.ipynb")
    session.enter()
    assert session.holding
    with Client.connect(settings, "tests") as client:
        assert "cannot be used" in client.look().broker.accounts
        (check,) = doctor._accounts(doctor.Installation(settings))
        assert (check.name, check.state) == ("accounts", "warning")
        assert "set JUPYTER_GPUSHARE_ACCOUNTS to a file" in check.sentence
        session.leave()
        answer = client.ask(Account(0.0, time.time() + 1))
    assert isinstance(answer, Accounts)
    assert "cannot be used" in answer.note
