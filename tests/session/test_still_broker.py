"""A broker that does not respond, such as one that is stopped: every caller is told so."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from jupyter_gpushare.client import link
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.errors import BrokerUnavailable, ConnectionLost
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import client as client_module
from jupyter_gpushare.wire.client import Client

SECONDS = 60.0


@pytest.fixture
def session(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Wait for a shorter time than usual."""
    defaults = Client.ask.__defaults__, Client._answer.__defaults__
    monkeypatch.setattr(Client.ask, "__defaults__", (None, 0.3))
    monkeypatch.setattr(Client._answer, "__defaults__", (None, 0.3))
    monkeypatch.setattr(sys.modules[Session.__module__], "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(link, "GOODBYE_SECONDS", 0.3)
    assert defaults == ((None, client_module.ANSWER_SECONDS),) * 2
    session = Session(settings, name="mine")
    session.open()
    yield session
    session.close()


@pytest.fixture
def stopped(broker_pid: int, session: Session) -> Iterator[int]:
    os.kill(broker_pid, signal.SIGSTOP)
    yield broker_pid
    os.kill(broker_pid, signal.SIGCONT)


def test_a_viewer_or_a_new_connection_is_told_so(settings: Settings, stopped: int) -> None:
    with pytest.raises(BrokerUnavailable, match="the broker stands still"):
        Client.connect(settings)


def test_a_change_that_is_not_answered_is_told_and_the_session_comes_back(
    session: Session, stopped: int
) -> None:
    with pytest.raises(ConnectionLost, match="the broker stands still"):
        session.change(weight=2.0)
    os.kill(stopped, signal.SIGCONT)
    for _ in range(100):
        try:
            session.change(weight=3.0)
        except (ConnectionLost, BrokerUnavailable):
            threading.Event().wait(0.1)
        else:
            break
    assert session.weight == 3.0


def test_sharing_ends_beside_a_broker_that_does_not_respond(session: Session, stopped: int) -> None:
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert not closing.is_alive()


def test_training_waits_for_a_broker_that_does_not_respond(session: Session, stopped: int) -> None:
    """No other session can be given the turn meanwhile; it is not requested again and again."""
    waiting = threading.Thread(target=session.enter, daemon=True)
    waiting.start()
    waiting.join(0.6)
    assert (waiting.is_alive(), session.holding) == (True, False)
    os.kill(stopped, signal.SIGCONT)
    waiting.join(SECONDS)
    assert session.holding
