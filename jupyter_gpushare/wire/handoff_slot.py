"""The handoff slot receives the turn that the session before hands off directly.

The message is the broker's Grant with a MAC, which the broker makes with the successor's key: the
session that hands the turn off need not read it, and cannot write one. It is an early copy, since
the broker's own Grant follows in any case. So a message that gets lost, as between two containers,
costs only the time that it would have saved.
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
        """Return a new key for direct handoffs; empty if there is no slot. Handoffs that an earlier
        broker has written give no turn any more, since the next broker may have given that turn to
        another session."""
        key = secrets.token_hex(KEY_LENGTH // 2) if self.name else ""
        self.renew(key)
        return key


def write_handoff_token(key: str, grant: Grant) -> str:
    """Return the message for a session's slot: a MAC, and behind it the fields of the Grant
    (csrc/handoff).

    A session that carries the message can read it, but learns nothing by which to write another.
    """
    numbers = f"{grant.turn} {grant.lane} {grant.bytes} {grant.memory} {grant.chunks}"
    if grant.end != ALONE:
        numbers += f" {grant.end}"
    mac = hashlib.blake2s(numbers.encode(), key=key.encode(), digest_size=MAC_BYTES)
    return f"{mac.hexdigest()} {numbers}"
