"""A broker is replaced by the next one, as in an upgrade: no notebook is lost, and all agree on
which one has the turn."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.launch import try_connect

from ...conftest import Opened

NEWER = """
from jupyter_gpushare.wire import messages
messages.PROTOCOL += 1
"""
BROKER = "from jupyter_gpushare.broker.__main__ import main; main()"
DEMAND = Demand(1000, 1000, measured=True)


class Brokers:
    """One after the other on the same socket, as an admin's service runs them."""

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.socket)
        self.start()

    def start(self, change: str = "") -> None:
        self._process = subprocess.Popen([sys.executable, "-c", change + BROKER], cwd="/")
        while (connection := try_connect(self._path)) is None:
            assert self._process.poll() is None
            time.sleep(0.02)
        connection.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


@pytest.fixture
def only_looks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("JUPYTER_GPUSHARE_START_BROKER", "0")
    return msgspec.structs.replace(settings, start_broker=False)


@pytest.fixture
def brokers(only_looks: Settings) -> Iterator[Brokers]:
    brokers = Brokers(only_looks)
    yield brokers
    brokers.stop()


@pytest.fixture
def opened(only_looks: Settings, brokers: Brokers, opened: Opened) -> Callable[[str], Session]:
    return partial(opened, given=only_looks)


def test_a_broker_that_ended_without_sessions_leaves_none_to_wait_for(
    settings: Settings, only_looks: Settings, brokers: Brokers
) -> None:
    with Client.connect(only_looks) as client:
        client.ask(m.Open(id="a", name="a", device="host", demand=DEMAND))
    brokers.stop()
    assert Path(settings.socket).with_suffix(".lock").read_text() == ""


@pytest.mark.system
def test_with_a_broker_of_a_newer_protocol_the_holder_computes_and_waiting_sessions_are_told_why(
    opened: Callable[[str], Session], brokers: Brokers
) -> None:
    """Nothing is lost: the notebook may stop sharing, or wait for a broker of its protocol."""
    holder, waiter, leaver = opened("holder"), opened("waiter"), opened("leaver")
    holder.enter()
    brokers.stop()
    brokers.start(NEWER)
    for _ in range(3):
        holder.boundary()
    assert (holder.holding, holder.iterations) == (True, 3)
    told: queue.Queue[m.Wait] = queue.Queue()
    waiter.on_wait = leaver.on_wait = told.put
    threads = {session: threading.Thread(target=session.enter) for session in (waiter, leaver)}
    for thread in threads.values():
        thread.start()
    wait = told.get(timeout=60)
    assert "speaks protocol 2, not 1" in wait.reason
    assert "restart the kernel" in wait.reason
    assert "`%gpushare off` lets the notebook go on" in wait.reason
    leaver.close()  # as %gpushare off does
    threads[leaver].join(60)
    assert not threads[leaver].is_alive()
    assert threads[waiter].is_alive()
    brokers.stop()
    brokers.start()
    holder.leave()
    threads[waiter].join(60)
    assert waiter.holding
