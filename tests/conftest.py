"""Fixtures that every test may use: a socket path, and a real broker process on it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.protocol import SessionView, Shutdown, Snapshot
from jupyter_gpushare.settings import Settings

pytest_plugins = ("pytest_jupyter.jupyter_server",)


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A short path: socket names hold at most 107 bytes, and pytest's tmp_path may be longer."""
    directory = Path(tempfile.mkdtemp(prefix="gs-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def settings(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a private broker, also in the environment of every process that a test starts.

    The broker starts with the first client that wants one and is ended here.
    """
    given = settings_module.load({}, socket=str(socket_directory / "b.sock"), device="host")
    for name, value in settings_module.as_environment(given).items():
        monkeypatch.setenv(name, value)
    yield given
    end_broker(given)


@pytest.fixture
def broker_pid(settings: Settings) -> int:
    """The process id of a running broker."""
    with Client.connect(settings, "tests") as client:
        return client.welcome.pid


@pytest.fixture
def look(settings: Settings) -> Callable[[], Snapshot]:
    def look() -> Snapshot:
        with Client.connect(settings, "tests") as client:
            return client.look()

    return look


@pytest.fixture
def sessions(look: Callable[[], Snapshot]) -> Callable[[], dict[str, SessionView]]:
    """The sessions of all devices by name, as a looker sees them now."""

    def sessions() -> dict[str, SessionView]:
        return {view.name: view for device in look().devices for view in device.sessions}

    return sessions


def end_broker(settings: Settings) -> None:
    """End the broker of `settings` if one answers; a stuck one is killed."""
    try:
        with Client.connect(settings, "tests", start=False) as client:
            pid = client.welcome.pid
            client.ask(Shutdown())
    except GpuShareError:
        return
    try:
        if os.pidfd_open(pid) is not None:
            wait_for_exit(pid)
    except ProcessLookupError:
        return


def wait_for_exit(pid: int, seconds: float = 10.0) -> None:
    """Wait until process `pid` (no child of ours) has ended; kill it when it does not."""
    import select

    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(descriptor)
