"""A CUDA build of PyTorch on a GPU that is main memory: `make test-cuda`, or `tests/cuda/run`.

Each test starts processes of its own, which call one function of a program and answer with JSON.
Without the environment that `run` gives, there is nothing to collect here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.settings import Settings, as_environment

from ..conftest import end_broker

HERE = Path(__file__).resolve().parent
SECONDS = 800  # of one process; a safety net
IS_HERE = "FAKE_CUDA_KERNELS" in os.environ
collect_ignore_glob = [] if IS_HERE else ["test_*.py"]

Run = Callable[..., Any]
Start = Callable[..., "Process"]


class Process:
    """One that runs `function` of a program. Its standard input goes on with `go_on`."""

    def __init__(
        self, program: str, function: str, arguments: tuple[Any, ...], **more: str
    ) -> None:
        words = [sys.executable, str(HERE / program), function, json.dumps(arguments)]
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self) -> str:
        """Its next line; what it says between two `go_on`."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What the function returned."""
        try:
            printed, words = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(6)  # faulthandler tells where each thread is
            words = self._process.communicate()[1]
            pytest.fail(f"not done after {SECONDS} s:\n{words[-4000:]}")
        assert self._process.returncode == 0, words[-4000:]
        return json.loads(printed.splitlines()[-1])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(program, function, *arguments, NAME=value)`: all that a test starts have one GPU."""
    started: list[Process] = []

    def start(program: str, function: str, *arguments: Any, **environment: str) -> Process:
        environment = {"FAKE_CUDA_HOST": tmp_path.name, **environment}
        started.append(Process(program, function, arguments, **environment))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def run(start: Start) -> Run:
    """One process alone, and its answer."""
    return lambda *words, **environment: start(*words, FAKE_CUDA_HOST="", **environment).answer()


@pytest.fixture
def broker(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A private broker, whose turns end at each boundary where another session waits."""
    given = settings_module.load(
        {},
        socket=str(socket_directory / "b.sock"),
        accounts=str(socket_directory / "accounts.sqlite"),
        device="cuda:0",
        quantum_seconds=1e-6,
        half_life_seconds=1e-6,
    )
    for name, value in as_environment(given).items():
        monkeypatch.setenv(name, value)
    yield given
    end_broker(given)
