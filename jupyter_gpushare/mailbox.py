"""Where a session finds a turn that the session before it hands on, past the broker.

A letter is the successor's key and the broker's Grant, written by the broker; whoever hands the
turn on need not read it. It is an early copy: the broker's own Grant follows in any case, so a
letter that gets lost, as between two containers, costs nothing but the time it would have saved.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys

from .errors import ProtocolError
from .protocol import KEY_LENGTH, Grant, Successor, read_letter

MAX_LETTER_BYTES = 1024


class Mailbox:
    """One session's. Its name lies in no directory and ends with the process (Linux alone)."""

    def __init__(self) -> None:
        self.name = self.key = ""
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            self._open()

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # then turns come from the broker alone
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            name = f"gpushare-{secrets.token_hex(8)}"
            self._socket.bind(f"\0{name}")
            self.name = name

    @property
    def is_open(self) -> bool:
        return self._socket is not None and self._socket.fileno() >= 0

    def new_key(self) -> str:
        """For letters from now on: those that a broker before has written give no turn any more,
        since the next one may have given it to somebody else. Empty where there is no mailbox."""
        self.key = secrets.token_hex(KEY_LENGTH // 2) if self.name else ""
        return self.key

    def fileno(self) -> int:
        """-1 where there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def receive(self) -> Grant | None:
        """A letter's Grant, without waiting; None if there is none, or not for this key."""
        with contextlib.suppress(OSError, ProtocolError):
            assert self._socket is not None
            return read_letter(self._socket.recv(MAX_LETTER_BYTES), self.key)
        return None

    def send(self, successor: Successor) -> None:
        """Hand the turn on. It does not matter whether anybody is there."""
        with contextlib.suppress(OSError):
            assert self._socket is not None
            self._socket.sendto(successor.letter.encode(), f"\0{successor.mailbox}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
