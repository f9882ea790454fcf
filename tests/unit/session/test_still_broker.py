"""A broker that does not respond, such as one that is stopped: every caller is told so."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.client.session import link
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import BrokerUnavailable, ConnectionLost
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import client as client_module
from jupyter_gpushare.wire import launch
from jupyter_gpushare.wire.client import Client

from ...polling import until

SECONDS = 60.0
SHORT_SECONDS = 0.3  # how long callers wait for an answer of the stopped broker


@pytest.fixture
def go_on(broker_pid: int, session: Session) -> Iterator[Callable[[], None]]:
    """The broker is stopped, and callers wait for a shorter time than usual, until a test lets the
    broker go on."""
    with pytest.MonkeyPatch.context() as patch:

        def go_on() -> None:
            patch.undo()
            os.kill(broker_pid, signal.SIGCONT)

        for ask in (Client.ask, Client._answer):
            assert ask.__defaults__ == (None, client_module.ANSWER_SECONDS)
            patch.setattr(ask, "__defaults__", (None, SHORT_SECONDS))
        patch.setattr(sys.modules[Session.__module__], "ANSWER_SECONDS", SHORT_SECONDS)
        patch.setattr(link, "GOODBYE_SECONDS", SHORT_SECONDS)
        patch.setattr(launch, "ACCEPTED_SECONDS", SHORT_SECONDS)
        os.kill(broker_pid, signal.SIGSTOP)
        yield go_on
        go_on()


@pytest.mark.usefixtures("go_on")
def test_a_viewer_or_a_new_connection_is_told_so(settings: Settings) -> None:
    with pytest.raises(BrokerUnavailable, match="the broker stands still"):
        Client.connect(settings)


@pytest.mark.usefixtures("go_on")
def test_a_connection_behind_too_many_that_wait_is_told_so(settings: Settings) -> None:
    with contextlib.ExitStack() as waiting:
        is_full = False
        while not is_full:
            one = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.setblocking(False)
            is_full = one.connect_ex(settings.socket) == errno.EAGAIN
        with pytest.raises(BrokerUnavailable, match="stands still: it accepts no connection"):
            Client.connect(settings)


def test_a_change_that_is_not_answered_is_told_and_the_session_comes_back(
    session: Session, go_on: Callable[[], None]
) -> None:
    with pytest.raises(ConnectionLost, match="the broker stands still"):
        session.change(weight=2.0)
    go_on()
    until(lambda: changes(session, 3.0))
    assert session.weight == 3.0


def changes(session: Session, weight: float) -> bool:
    with contextlib.suppress(ConnectionLost, BrokerUnavailable):
        session.change(weight=weight)
        return True
    return False


@pytest.mark.usefixtures("go_on")
def test_sharing_ends_beside_a_broker_that_does_not_respond(session: Session) -> None:
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert not closing.is_alive()


@pytest.mark.system
def test_training_waits_for_a_broker_that_does_not_respond(
    session: Session, go_on: Callable[[], None]
) -> None:
    """No other session can be given the turn meanwhile, and the turn is not requested again and
    again."""
    waiting = threading.Thread(target=session.enter, daemon=True)
    waiting.start()
    waiting.join(2 * SHORT_SECONDS)
    assert (waiting.is_alive(), session.holding) == (True, False)
    go_on()
    waiting.join(SECONDS)
    assert session.holding
