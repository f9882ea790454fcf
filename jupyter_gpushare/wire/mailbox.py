"""Where a session finds a turn that the session before it hands on, past the broker.

A letter is the broker's Grant with a MAC of it, which the broker makes with the successor's key;
whoever hands the turn on need not read it, and cannot write one. It is an early copy: the broker's
own Grant follows in any case, so a letter that gets lost, as between two containers, costs nothing
but the time it would have saved.
"""

from __future__ import annotations

import hashlib
import secrets
import sys

from .. import _core
from .messages import KEY_LENGTH, Grant

MAC_BYTES = 16  # of a letter


class Mailbox(_core.Mailbox):
    """One session's. Its name lies in no directory and ends with the process (Linux alone)."""

    def __init__(self) -> None:
        name = f"gpushare-{secrets.token_hex(8)}" if sys.platform == "linux" else ""
        super().__init__(name)
        self.name = name if self.is_open else ""

    def new_key(self) -> str:
        """For letters from now on: those that a broker before has written give no turn any more,
        since the next one may have given it to somebody else. Empty where there is no mailbox."""
        key = secrets.token_hex(KEY_LENGTH // 2) if self.name else ""
        self.renew(key)
        return key


def write_letter(key: str, grant: Grant) -> str:
    """What a session finds in its mailbox: what the Grant says, behind a MAC of it (csrc/handoff).

    Whoever carries it reads it, and learns nothing by which to write another.
    """
    numbers = f"{grant.turn} {grant.lane} {grant.bytes} {grant.memory} {grant.chunks}"
    mac = hashlib.blake2s(numbers.encode(), key=key.encode(), digest_size=MAC_BYTES)
    return f"{mac.hexdigest()} {numbers}"
