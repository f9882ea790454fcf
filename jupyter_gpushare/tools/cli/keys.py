"""Keys that are pressed in a terminal, one at a time and without echo."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STEPS = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}
MOST_BYTES = 16  # of one key; an arrow is three


@contextmanager
def pressed() -> Iterator[Iterator[str]]:
    """Yield the keys. If standard input is not a terminal there are none, and the iterator waits
    for a signal."""
    if not sys.stdin.isatty():
        yield _none()
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield iter(_read, "")
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read() -> str:
    return os.read(sys.stdin.fileno(), MOST_BYTES).decode(errors="replace")


def _none() -> Iterator[str]:
    import signal

    while True:
        signal.pause()
        yield ""
