"""Processes of this user and of others. Processes of other users are forked without exec, since
these users may not be able to run our Python."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can act as another user, as a hub's users are"
)


def run_broker(**own: str) -> subprocess.CompletedProcess[str]:
    """Run a broker with these settings, which ends by itself."""
    environment = {f"JUPYTER_GPUSHARE_{name.upper()}": value for name, value in own.items()}
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.broker"],
        cwd="/",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def open_files(pid: int) -> dict[str, str]:
    """Return the files that a process has open, one for each descriptor."""
    found = {}
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed just now
            found[descriptor] = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return found


@contextlib.contextmanager
def no_descriptors(pid: int, begin: int) -> Iterator[None]:
    """Keep a process from opening descriptors from this number on. Open ones stay usable."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (begin, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


class Child:
    """A process that runs a function. The function gets one end of a pair of sockets, and the test
    the other end."""

    def __init__(
        self, play: Callable[[socket.socket], None], uid: int = 0, groups: Sequence[int] = ()
    ) -> None:
        self._words, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if (pid := os.fork()) == 0:
            self._words.close()
            with contextlib.suppress(BaseException):
                become(uid, groups)
                play(theirs)
            os._exit(0)
        theirs.close()
        self.pid = pid

    def says(self, word: str) -> None:
        self._words.send(word.encode())

    def hears(self) -> Any:
        answer = self._words.recv(1 << 16)
        assert answer, "the child has ended"
        return json.loads(answer)

    def end(self) -> None:
        self._words.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def become(uid: int, groups: Sequence[int]) -> None:
    if uid:
        os.setgroups(groups)
        os.setgid(uid)
        os.setuid(uid)


def as_user(uid: int, act: Callable[[], Any], groups: Sequence[int] = ()) -> Any:
    """Return the result of `act` in a process of this user, or the sentence of its error."""

    def answer(words: socket.socket) -> None:
        try:
            said = act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        words.send(json.dumps(said).encode())

    child = Child(answer, uid, groups)
    try:
        return child.hears()
    finally:
        child.end()
