"""Messages of sessions about their turns, and about memory that is paged out and in."""

from __future__ import annotations

import logging

from ..wire.messages import Busy, Finish, PagedOut, Request, StaysIn
from . import validation
from .grants.rooms import Rooms
from .peer import Peer
from .sessions import SessionRecord
from .snapshot import views
from .state import BrokerState

log = logging.getLogger("jupyter_gpushare.broker")


class Turns:
    """Passes these messages to the scheduler. Owns no state: `grants` has the turns."""

    def __init__(self, state: BrokerState, rooms: Rooms) -> None:
        self._state = state
        self._rooms = rooms

    def request(self, peer: Peer, message: Request, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_turn(message.turn)
        record.is_refused = False
        self._state.grants.end_up_to(record, message.turn - 1)
        self._rooms.tell_newcomer(record.id, now)
        self._state.grants.enact(self._state.host.request(now, record.id, message.turn))

    def finish(self, peer: Peer, message: Finish, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_turn(message.turn)
        if all(told.turn != message.turn for told in record.told):
            self._has_withdrawn(record)
        self._state.grants.end_up_to(record, message.turn)
        self._state.grants.enact(self._state.host.finish(now, record.id, message.turn))

    def _has_withdrawn(self, record: SessionRecord) -> None:
        """Note that the session waits no longer. Its user may free memory now, and only an
        iteration measures how much. So the session has one turn before it is throttled again for
        its memory."""
        record.above_quota = None
        record.is_outgrown = False

    def busy(self, peer: Peer, message: Busy, now: float) -> None:
        record = self._state.sessions.of(peer)
        record.finish.forget()
        self._state.grants.enact(self._state.host.set_busy(now, record.id, message.busy))

    def paged_out(self, peer: Peer, message: PagedOut, now: float) -> None:
        record = self._state.sessions.of(peer)
        if message.page_ins in (None, peer.page_ins):  # otherwise a newer PageIn is on its way
            self._state.grants.enact(self._state.host.paged_out(now, record.id, message.bytes))

    def stays_in(self, peer: Peer, message: StaysIn, now: float) -> None:
        record = self._state.sessions.of(peer)
        reason = views.printable(message.reason)
        log.warning("process %d is not paged out: %s", peer.pid, reason)
        self._state.grants.enact(self._state.host.page_out_failed(now, record.id, reason))
