"""The ends of lanes that two sessions use at once, and the ledgers by which these go.

The second session may begin while the first one is in the middle of an iteration and does not know
of it. So the end of the first is held, with all that it may use, before the second is told
anything; at its next boundary the first one takes it over. The descriptor by which it is held is on
its way to the first one, and a copy is kept here until the turn or the process has ended.
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
        """Whether it was told of its end in the middle of its turn. It may not know until the turn
        has ended, so no session can follow it there at once."""
        return session in self._held

    def tell(self, record: SessionRecord, piece: Piece, grant: Grant) -> None:
        """Send the ledger of a piece to a session, before a grant with an end, if it lacks the
        ledger or the end is held for it."""
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
        """The turn of a session or its process has ended, or neither process goes by the
        ledger any more."""
        if self._held and (held := self._held.pop(session, None)) is not None:
            held.release()
