"""Programs and forked processes that have sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.settings import Settings

from ..broker.conftest import child, open_to_all

__all__ = ["child", "open_to_all"]


class Process:
    """A Python program in a process of its own, as a user's script would be."""

    def __init__(self, program: str, *arguments: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def say(self) -> None:
        """Send an empty line."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def result(self) -> dict[str, object]:
        """Return the JSON of its last line. `communicate` would miss lines that `line` has read
        ahead."""
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        out, err = self.popen.stdout.read(), self.popen.stderr.read()
        assert self.popen.wait(timeout=240) == 0, err
        assert "Traceback" not in err
        return dict(json.loads(out.splitlines()[-1]))

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def run(settings: Settings) -> Iterator[Callable[..., Process]]:
    processes = []

    def run(program: str, *arguments: object) -> Process:
        processes.append(Process(program, *arguments))
        return processes[-1]

    yield run
    for process in processes:
        if process.popen.poll() is None:
            process.kill()
