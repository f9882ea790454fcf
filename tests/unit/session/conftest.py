"""Programs and forked processes that have sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings

from ...conftest import Opened
from ...makers import maker
from ..broker.conftest import child, open_to_all

__all__ = ["child", "open_to_all"]


class Process:
    """A Python program in a process of its own, as a user's script would be."""

    def __init__(self, *words: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def say(self, line: str = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
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
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()


@pytest.fixture
def session(opened: Opened) -> Session:
    return opened("mine")


Run = Callable[..., Process]


@pytest.fixture
def run(settings: Settings) -> Iterator[Run]:
    with maker(partial(Process, "-c"), Process.kill) as run:
        yield run
