"""Errors of the system on the way to a broker fail no cell, and end no keeper."""

from __future__ import annotations

import os
import queue
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.wire.messages import Wait

from ..broker.processes import NOBODY, as_user, needs_root, no_descriptors

SECONDS = 60.0


@pytest.mark.system
def test_a_cell_that_waits_is_told_and_continues_when_the_system_recovers(
    broker_pid: int, session: Session
) -> None:
    told: queue.Queue[Wait] = queue.Queue()
    session.on_wait = told.put
    failed: list[BaseException] = []
    os.close(lowest := os.dup(0))
    with no_descriptors(os.getpid(), lowest):
        os.kill(broker_pid, signal.SIGKILL)
        cell = threading.Thread(target=run, args=(session, failed))
        cell.start()
        wait = told.get(timeout=SECONDS)
        assert "waits for the broker" in wait.reason
    cell.join(SECONDS)
    assert (session.holding, failed) == (True, [])


def run(session: Session, failed: list[BaseException]) -> None:
    try:
        session.enter()
    except BaseException as error:
        failed.append(error)


@needs_root
def test_a_lack_of_processes_is_reported_in_one_sentence(settings: Settings) -> None:
    """Root has no such limit."""
    Path(settings.socket).parent.chmod(0o755)
    os.chown(Path(settings.socket).parent, NOBODY, NOBODY)

    def act() -> Any:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return str(connect(settings))

    said = as_user(NOBODY, act)
    assert said.startswith("BrokerUnavailable: the way to the broker on"), said
