"""Errors of the system on the way to a broker fail no cell, and end no keeper."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.launch import connect, log_path
from jupyter_gpushare.wire.messages import Wait
from jupyter_gpushare.wire.snapshot import SessionView

from ...polling import until
from ..broker.processes import NOBODY, as_user, needs_root

SECONDS = 60.0


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """No descriptor is free; open ones stay usable."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def no_log(settings: Settings) -> Iterator[None]:
    """A directory lies where it should be."""
    log = log_path(Path(settings.socket))
    log.unlink()
    log.mkdir()
    yield
    log.rmdir()


@pytest.fixture
def session(opened: Callable[..., Session]) -> Session:
    return opened("mine")


@pytest.mark.system
@pytest.mark.parametrize("trouble", ["descriptors", "log"])
def test_a_cell_that_waits_is_told_and_continues_when_the_system_recovers(
    settings: Settings, broker_pid: int, session: Session, trouble: str
) -> None:
    told: queue.Queue[Wait] = queue.Queue()
    session.on_wait = told.put
    failed: list[BaseException] = []
    with no_descriptors() if trouble == "descriptors" else no_log(settings):
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


@pytest.mark.system
@pytest.mark.parametrize("trouble", ["descriptors", "log"])
def test_the_keeper_restores_the_connection_while_a_cell_computes(
    settings: Settings,
    broker_pid: int,
    session: Session,
    trouble: str,
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    session.enter()
    with no_descriptors() if trouble == "descriptors" else no_log(settings):
        os.kill(broker_pid, signal.SIGKILL)
        threading.Event().wait(1.0)  # the keeper tries without success
        for _ in range(3):
            session.boundary()
        assert "gpushare-keeper" in {thread.name for thread in threading.enumerate()}
    until(lambda: "mine" in sessions())
    assert sessions()["mine"].state == "running"


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
