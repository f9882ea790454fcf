"""A broker is replaced by the next one, as in an upgrade: no notebook is lost, and all agree on
which one has the turn."""

from __future__ import annotations

import os
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

from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.launch import log_path, try_connect
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from ..conftest import wait_for_exit
from ..polling import until
from .conftest import Process

NEWER = """
from jupyter_gpushare.wire import messages
messages.PROTOCOL += 1
"""
BROKER = "from jupyter_gpushare.broker.__main__ import main; main()"
DEMAND = m.Demand(1000, 1000, measured=True)

TRAINS = """
import json, select, sys
import torch
import jupyter_gpushare as gpushare
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with gpushare.session(name=sys.argv[1], device="host") as session:
    while not select.select([0], [], [], 0)[0]:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    print(json.dumps({"told": session.take_notices()}), flush=True)
"""


class Brokers:
    """One after the other on the same socket, as an admin's service runs them."""

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.socket)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, change: str = "") -> None:
        self._process = subprocess.Popen([sys.executable, "-c", change + BROKER], cwd="/")
        while (connection := try_connect(self._path)) is None:
            assert self._process.poll() is None
            time.sleep(0.02)
        connection.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)


@pytest.fixture
def only_looks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("JUPYTER_GPUSHARE_START_BROKER", "0")
    return msgspec.structs.replace(settings, start_broker=False)


@pytest.fixture
def brokers(only_looks: Settings) -> Iterator[Brokers]:
    brokers = Brokers(only_looks)
    brokers.start()
    yield brokers
    brokers.stop()


@pytest.fixture
def opened(
    only_looks: Settings, brokers: Brokers, opened: Callable[..., Session]
) -> Callable[[str], Session]:
    return partial(opened, given=only_looks)


def test_a_broker_that_ended_without_sessions_leaves_none_to_wait_for(
    settings: Settings, only_looks: Settings, brokers: Brokers
) -> None:
    with Client.connect(only_looks) as client:
        client.ask(m.Open(id="a", name="a", device="host", demand=DEMAND))
    brokers.stop()
    assert Path(settings.socket).with_suffix(".lock").read_text() == ""


def test_holder_waiting_and_idle_sessions_keep_their_states_at_the_next_broker(
    opened: Callable[[str], Session],
    brokers: Brokers,
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    holder, waiter, idle = opened("holder"), opened("waiter"), opened("idle")
    for session in (holder, idle):
        session.enter()
        session.boundary()
        session.leave()
    holder.enter()
    waits = threading.Thread(target=waiter.enter)
    waits.start()
    until(lambda: sessions()["waiter"].state == "waiting")
    before = sessions()
    brokers.stop()
    brokers.start()
    states = {"holder": "running", "waiter": "waiting", "idle": "idle"}
    until(lambda: {name: view.state for name, view in sessions().items()} == states)
    after = sessions()
    for name, view in before.items():
        assert (after[name].id, after[name].iterations) == (view.id, view.iterations)
        assert (after[name].device_seconds > 0) == (view.device_seconds > 0)
    assert holder.holding
    assert not waiter.holding
    holder.boundary()
    holder.leave()
    waits.join(60)
    assert waiter.holding


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_scripts_train_on_as_others_have_set_them_and_are_told(
    settings: Settings,
    run: Callable[..., Process],
    broker_pid: int,
    look: Callable[[], Snapshot],
    sessions: Callable[[], dict[str, SessionView]],
    number: signal.Signals,
) -> None:
    """Pause, weight and policy, which a person has set from another process."""
    scripts = {name: run(TRAINS, name) for name in ("a", "b")}
    until(lambda: len(there := sessions()) == 2 and all(one.iterations for one in there.values()))
    id = sessions()["a"].id
    with Client.connect(settings) as person:
        person.ask(m.Change(id, weight=3.0, paused=True))
        person.ask(m.SetPolicy("las"))
    until(lambda: sessions()["a"].state == "paused")
    os.kill(broker_pid, number)
    wait_for_exit(broker_pid)
    until(lambda: len(sessions()) == 2)
    before = sessions()
    until(lambda: sessions()["b"].iterations > before["b"].iterations)
    view = sessions()["a"]
    assert (view.state, view.weight, view.iterations) == ("paused", 3.0, before["a"].iterations)
    assert look().policy == "las"
    with Client.connect(settings) as person:
        person.ask(m.Change(id, paused=False))
    until(lambda: sessions()["a"].iterations > view.iterations)
    for script in scripts.values():
        script.say()
    told = "The broker has restarted; pause, weight 3 and the policy las hold as before."
    assert [script.result()["told"] for script in scripts.values()] == [[told], []]
    assert told[:25] in log_path(Path(settings.socket)).read_text()


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
    told: queue.Queue[m.Wait | None] = queue.Queue()
    waiter.on_wait = leaver.on_wait = told.put
    threads = {session: threading.Thread(target=session.enter) for session in (waiter, leaver)}
    for thread in threads.values():
        thread.start()
    wait = told.get(timeout=60)
    assert wait is not None
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
