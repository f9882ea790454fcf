"""The handoff slot: a session finds a turn here that the session before it hands off directly.

The message is the broker's Grant with a MAC of it, which the broker makes with the successor's
key; the session that hands the turn off need not read it, and cannot write one. It is an early
copy: the broker's own Grant follows in any case, so a message that gets lost, as between two
containers, costs nothing but the time it would have saved.
"""

from __future__ import annotations

import hashlib
import secrets
import sys

from .. import _core
from .messages import ALONE, KEY_LENGTH, Grant

MAC_BYTES = 16  # of a direct handoff


class HandoffSlot(_core.HandoffSlot):
    """The slot of one session. Its name lies in no directory and ends with the process (Linux
    alone)."""

    def __init__(self) -> None:
        name = f"gpushare-{secrets.token_hex(8)}" if sys.platform == "linux" else ""
        super().__init__(name)
        self.name = name if self.is_open else ""

    def new_key(self) -> str:
        """Return a key for direct handoffs from now on: those that an earlier broker has written
        give no turn any more, since the next broker may have given it to another session. Empty
        where there is no slot."""
        key = secrets.token_hex(KEY_LENGTH // 2) if self.name else ""
        self.renew(key)
        return key


def write_handoff_token(key: str, grant: Grant) -> str:
    """Return what a session finds in its slot: what the Grant says, behind a MAC of it
    (csrc/handoff).

    A session that carries it can read it, and learns nothing by which to write another.
    """
    numbers = f"{grant.turn} {grant.lane} {grant.bytes} {grant.memory} {grant.chunks}"
    if grant.end != ALONE:
        numbers += f" {grant.end}"
    mac = hashlib.blake2s(numbers.encode(), key=key.encode(), digest_size=MAC_BYTES)
    return f"{mac.hexdigest()} {numbers}"
