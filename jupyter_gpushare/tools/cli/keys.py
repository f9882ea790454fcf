"""Keys that are pressed in a terminal, one at a time and without echo."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STEPS = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}
KEY = re.compile(r"\x1b(?:\[|O)[A-Z]|.", re.DOTALL)  # an arrow has three characters
PART = re.compile(r"\x1b[\[O]?\Z")  # begins an arrow, or is a key itself; the next read tells
MOST_BYTES = 64  # of keys in one read


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
        yield _keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _keys() -> Iterator[str]:
    text = ""
    while read := _read():
        text += read
        end = part.start() if (part := PART.search(text)) else len(text)
        yield from KEY.findall(text[:end])
        text = text[end:]


def _read() -> str:
    return os.read(sys.stdin.fileno(), MOST_BYTES).decode(errors="replace")


def _none() -> Iterator[str]:
    import signal

    while True:
        signal.pause()
        yield ""
