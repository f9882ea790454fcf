"""The ends of lanes that two sessions use at once, and the ledgers that coordinate the sessions.

The second session may begin in the middle of an iteration of the first one, which does not know of
it. So the broker holds the end of the first session, with all that it may use, before it tells the
second one anything. The first session takes its end over at its next boundary. It gets the
descriptor that holds the end; the broker keeps a copy until the turn or the process has ended.
"""

from __future__ import annotations

import contextlib

from ... import _core
from ...wire.messages import Grant, Ledger
from ..sessions import SessionRecord
from .lane_memory import Piece


class Ends:
    """Owns the ends that are held."""

    def __init__(self) -> None:
        self._held: dict[str, _core.HeldEnd] = {}  # by session

    def is_held_for(self, session: str) -> bool:
        """Whether the session was told of its end in the middle of its turn. It may not read this
        before the turn has ended, so it must not hand the turn off directly."""
        return session in self._held

    def tell(self, record: SessionRecord, piece: Piece, grant: Grant) -> None:
        """Send a session the ledger of a piece before a grant with an end, if the session lacks the
        ledger or the broker holds its end."""
        descriptor = piece.ledger.descriptor
        before = next((told for told in record.told if told.turn == grant.turn), grant)
        if (before.memory, before.end) != (grant.memory, grant.end):
            with contextlib.suppress(RuntimeError):  # its process has the end already
                # A session that is alone in a lane fills it from the first end, whichever it gets.
                used = before.bytes if grant.end == 0 else grant.bytes
                held = _core.HeldEnd(descriptor, grant.end, used, grant.bytes)
                self._held[record.id] = held
                descriptor = held.descriptor
        elif record.peer.ledger == piece.number:
            return
        record.peer.ledger = piece.number
        record.peer.send_with(Ledger(piece.number), descriptor)

    def release(self, session: str) -> None:
        """Release the end held for a session: its turn or its process has ended, or the ledger is
        not used any more."""
        if self._held and (held := self._held.pop(session, None)) is not None:
            held.release()
