"""Jobs, and launchers that end with a test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .work import LAUNCHER, Launches, Makes, made


@pytest.fixture
def make_job(tmp_path: Path) -> Makes:
    def make(*command: object, name: str = "a", ranks: str = "node") -> Path:
        return made(tmp_path / "jobs" / name, *command, ranks=ranks)

    return make


@pytest.fixture
def launch() -> Iterator[Launches]:
    """Launchers, which are killed at the end of a test."""
    launchers: list[subprocess.Popen[bytes]] = []

    def launch(job: Path, number: int = 1, node: str = "n0") -> subprocess.Popen[bytes]:
        command = [sys.executable, str(LAUNCHER), str(job), str(number), node]
        launchers.append(subprocess.Popen(command, start_new_session=True))
        return launchers[-1]

    yield launch
    of = {launcher.pid for launcher in launchers}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) in of:
                process.kill()
    for launcher in launchers:
        launcher.wait()
