"""Tells each session of its turn, and of the memory of the lane that its turn is in."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import partial

from ... import _core
from ...devices import Device
from ...wire import chunks
from ...wire.handoff_slot import write_handoff_token
from ...wire.messages import ALONE, Grant, PageIn, PageOut, Successor, Trim, Yield
from ..accounting.accounts import AccountBook
from ..peer import Peer
from ..sessions import SessionRecord, Sessions
from .ends import Ends
from .lane_memory import Lanes, Piece
from .recovery import HeldTurn, RecoveryJournal

RETURN_SECONDS = 30.0  # a session that lost its connection may bring its turn back within this time
MOST_LOST = 1000


class Grants:
    """Owns the turns that were granted to sessions, and the memory of all lanes."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        sessions: Sessions,
        host: _core.Host,
        accounts: AccountBook,
        journal: RecoveryJournal,
        shares_lanes: bool = False,
    ) -> None:
        """`shares_lanes`: two sessions may use one lane at once."""
        self._devices = devices
        self._sessions = sessions
        self._host = host
        self._accounts = accounts
        self._journal = journal
        self._lanes = {
            device.name: Lanes(device.make_lane_memory, partial(self._trim, device.name))
            for device in devices.values()
            if device.make_lane_memory is not None
        }
        self._shares_lanes = shares_lanes
        self._ends = Ends()
        # The records that have `granted` or `handed`, in the order in which these were set first.
        self._told: dict[str, SessionRecord] = {}
        # session -> a turn that it may bring back, and until when (monotonic seconds)
        self._lost = {held.session: (held.turn, math.inf) for held in journal.missing}

    def enact(self, decision: _core.Decision) -> None:
        """Tell the sessions the decision. Each event comes through here, so this also notes that
        viewers need a new snapshot."""
        self._sessions.note_change()
        if decision:
            for session in decision.page_ins:  # before grants to the same sessions
                self._page_in(self._sessions[session].peer)
            if self._shares_lanes:
                self._tell_of_growth()  # a holder has its end before the second session begins
            for grant in decision.grants:
                record = self._sessions[grant.session]
                end = self._end_of(record) if self._shares_lanes else ALONE
                self._tell(record, grant.turn, grant.lane, end)
                self._accounts.granted(grant.session)
            for wish in decision.yields:
                may_hand_off = not self._ends.is_held_for(wish.session)
                successor = self._successor(wish.successor) if may_hand_off else None
                message = Yield(wish.turn, successor, wish.until_cell_ends)
                self._sessions[wish.session].peer.send_soon(message)
            for session in decision.page_outs:
                self._sessions[session].peer.send(PageOut())
        self._tell_of_growth()

    # --- turns begin and end -------------------------------------------------------------------

    def bears_out(self, session: str, turn: int, now: float) -> bool:
        """Whether this broker, or the one before, has granted this turn to the session."""
        lost, until = self._lost.get(session, (-1, 0.0))
        record = self._told.get(session)
        told = record is not None and any(grant.turn == turn for grant in record.told)
        return told or (turn == lost and now < until)

    def is_of_before(self, session: str) -> bool:
        """Whether a session had its turn under the previous broker, which has not counted all of
        it."""
        return self._lost.get(session, (0, 0.0))[1] == math.inf

    def adopt(self, record: SessionRecord, turn: int) -> None:
        """Take over a turn that the session had before this connection. It computes in memory of
        its own."""
        self._grant(record, Grant(turn, 0))
        record.brought_turn = True
        self._write_journal()

    def is_back(self, session: str) -> None:
        """Note that the session is back, with or without its turn: it cannot bring the turn back
        later."""
        self._lost.pop(session, None)
        self._journal.is_back(session)

    def lost(self, record: SessionRecord, now: float) -> None:
        """Note that the connection of a session ended. It may bring a turn back only once.
        Otherwise it could keep a turn past its deadline by repeated reconnects, or save turns up
        until others wait."""
        told = next(record.told, None)
        if told is not None and not record.brought_turn:
            self._lost[record.id] = (told.turn, now + RETURN_SECONDS)
        if len(self._lost) > MOST_LOST:
            self._lost = {name: lost for name, lost in self._lost.items() if now < lost[1]}
            self._lost = dict([*self._lost.items()][-MOST_LOST:])

    def end_up_to(self, record: SessionRecord, last: int) -> None:
        """Forget the grants of the turns up to number `last`, which have ended."""
        if record.granted is not None and record.granted.turn <= last:
            record.granted = None
        if record.handed is not None and record.handed.turn <= last:
            record.handed = None
        if record.granted is None:
            record.brought_turn = False
            self._ends.release(record.id)
        self._drop_if_untold(record)
        self._write_journal()

    def forget(self, record: SessionRecord) -> None:
        """Forget the turns of a session that closes."""
        self._ends.release(record.id)
        self._untell(record)
        record.brought_turn = False
        self._write_journal()

    def holders(self, device: str) -> Iterator[tuple[SessionRecord, int]]:
        """Yield the sessions of a device that have a turn, each with its lane."""
        for record in self._told.values():
            if record.granted is not None and device in record.devices:
                yield record, record.granted.lane

    def is_valid(self) -> str:
        """Return an empty string, or the first broken invariant in words."""
        told = {record.id: record for record in self._sessions if any(record.told)}
        if told != self._told:
            return f"{told.keys() ^ self._told.keys()} were told otherwise than their records say"
        return ""

    # --- memory of lanes -----------------------------------------------------------------------

    def follow_lanes(self) -> None:
        """Give back memory of lanes that have shrunk or closed, and of domains whose sessions have
        gone."""
        domains = {record.domain for record in self._sessions.all_known()}
        spoiled = [lanes for lanes in self._lanes.values() if lanes.abandon_spoiled()]
        if spoiled:
            self._tell_of_growth()
        for device, lanes in self._lanes.items():
            lanes.follow(partial(self._staying_bytes, device))
            lanes.close_emptied(domains)
        self._release_left()

    def _release_left(self) -> None:
        """Ask sessions without a turn to unmap memory that belongs to no lane any more. The system
        frees it only then, and the next turn of such a session may be far off."""
        numbers = {number for lanes in self._lanes.values() for number in lanes.numbers()}
        for record in self._sessions.all_known():
            peer = record.peer
            if peer.memory and peer.memory not in numbers and not any(record.told):
                peer.send(Trim(peer.memory, 0))
                peer.memory = peer.chunks = 0

    def leave_lane_to(self, record: SessionRecord) -> None:
        """Leave the lane's memory to a lost holder whose process lives, since it may still write
        there. The others get other memory."""
        for told in record.told:
            if told.memory and record.peer.is_alive():
                self._lanes[record.device].abandon(told.lane, record.domain)
        self._ends.release(record.id)
        for told in record.told:
            if told.end != ALONE:
                self._reap_end(record, told)
        self._untell(record)

    def _reap_end(self, record: SessionRecord, told: Grant) -> None:
        """Free the end of a session whose process has ended, for the other session in the lane. The
        other session would notice by itself, but later."""
        if (piece := self._lanes[record.device].numbered(told.memory)) is not None:
            _core.reap_end(piece.ledger.descriptor, told.end)

    def leave_domain(self, domain: str) -> None:
        """Give the domain other memory for turns that begin from now on, since a leaving session
        still maps the present memory. A running turn keeps its memory."""
        for device, lanes in self._lanes.items():
            for lane in lanes.of(domain):
                if not self._is_in(device, lane, domain):
                    lanes.empty(lane, domain)
                lanes.abandon(lane, domain)

    def take_chunks(self, peer: Peer, batch: chunks.Batch) -> None:
        """Keep chunks that a session has made for the lane that it has the turn in.

        The broker does not keep any other chunks; the session uses these for itself while it has
        the lane.
        """
        kept = self._wanting(peer, batch.memory)
        if kept is None or batch.first != len(kept.descriptors):
            chunks.close(batch.descriptors)
        else:
            kept.descriptors += batch.descriptors
            peer.chunks = len(kept.descriptors)

    # --- what is told --------------------------------------------------------------------------

    def _page_in(self, peer: Peer) -> None:
        peer.page_ins += 1
        peer.send(PageIn())

    def _tell(self, record: SessionRecord, turn: int, lane: int, end: int) -> None:
        """Grant a turn, or tell how the lane of a turn has changed. A gang's turn is on all of its
        devices, and in no lane."""
        peer, piece = record.peer, self._piece(record, lane, end)
        number, size = (piece.number, self._size(record, lane, end)) if piece else (0, 0)
        if piece is None:
            end = ALONE
        elif self._devices[record.device].chunk_bytes:
            self._send_chunks(peer, piece)
        squeezed = self._squeezed(record)
        grant = Grant(turn, lane, size, number, peer.chunks, squeezed, end)
        if piece is not None and end != ALONE:
            self._ends.tell(record, piece, grant)
        message = self._grant(record, grant)
        self._write_journal()
        if piece is None or peer.memory == number:
            peer.send(message)
        else:
            peer.memory = number
            peer.send_with(message, piece.memory.descriptors[0])

    def _successor(self, following: _core.Grant | None) -> Successor | None:
        """Return the direct handoff to a successor, or None if the successor lacks the lane's
        memory, or is squeezed, since a handoff cannot say so. Then the broker sends it a Grant
        after the turn."""
        if following is None:
            return None
        record, lane, end = self._sessions[following.session], following.lane, following.end
        piece = self._piece(record, lane, end)
        number, size = (piece.number, self._size(record, lane, end)) if piece else (0, 0)
        has_slot = record.handoff_slot and record.key
        if not has_slot or (piece and not self._has(record, piece, size, end)):
            return None
        if self._squeezed(record):
            return None
        end = end if piece else ALONE
        grant = Grant(following.turn, lane, size, number, record.peer.chunks, end=end)
        record.handed = grant
        self._told[record.id] = record
        self._write_journal()
        return Successor(record.handoff_slot, write_handoff_token(record.key, grant))

    def _tell_of_growth(self) -> None:
        """Tell holders of changes during their turn: their lane has grown, they are squeezed less,
        another session joined the lane, or they get other memory. They get less only after the
        turn."""
        for record in tuple(self._told.values()):
            told = record.granted
            if told and told.lane:
                end = self._end_of(record) if self._shares_lanes else ALONE
                if self._has_changed(record, told, end):
                    self._tell(record, told.turn, told.lane, end)

    # --- which turns are told ------------------------------------------------------------------

    def _grant(self, record: SessionRecord, grant: Grant) -> Grant:
        record.granted = grant
        self._told[record.id] = record
        return grant

    def _untell(self, record: SessionRecord) -> None:
        record.granted = record.handed = None
        self._drop_if_untold(record)

    def _drop_if_untold(self, record: SessionRecord) -> None:
        if record.granted is None and record.handed is None:
            self._told.pop(record.id, None)

    def _write_journal(self) -> None:
        """Write the recovery journal. This happens before the session is told of its turn, so that
        no later broker misses the turn."""
        self._journal.note(
            {
                HeldTurn(record.id, grant.turn, record.handoff_slot)
                for record in self._told.values()
                for grant in record.told
            }
        )

    # --- sizes of lanes ------------------------------------------------------------------------

    def _has_changed(self, record: SessionRecord, told: Grant, end: int) -> bool:
        if end == ALONE:
            is_other = self._size(record, told.lane) > told.bytes
        else:  # the size is fixed, but the memory may have been left to a lost session
            number = self._lanes[record.device].number(told.lane, record.domain)
            is_other = (told.memory, told.end) != ((number, end) if number else (0, ALONE))
        return is_other or self._squeezed(record) != told.squeezed_bytes

    def _end_of(self, record: SessionRecord) -> int:
        return self._host.end_of(record.device, record.id)

    def may_share(self, record: SessionRecord) -> bool:
        """Whether the session may use a lane beside another one of its trust domain. The memory can
        be divided only if the broker makes it."""
        device = self._devices[record.device]
        has_ends = record.device in self._lanes and not device.chunk_bytes
        return self._shares_lanes and has_ends and not record.gang

    def _squeezed(self, record: SessionRecord) -> int:
        """Return the bytes that an iteration of the session may take; 0: it is not squeezed."""
        return self._host.squeezed(record.device, record.id)

    def _size(self, record: SessionRecord, lane: int, end: int = ALONE) -> int:
        if end != ALONE:  # both sessions use the width
            return self._host.lane_width(record.device, lane)
        return self._host.lane_bytes(record.device, lane)

    def _piece(self, record: SessionRecord, lane: int, end: int = ALONE) -> Piece | None:
        """Return the memory of a lane. None if the system has none, or no ledger for two sessions:
        then the turn has no lane memory."""
        if record.device in self._lanes and self._size(record, lane):
            with contextlib.suppress(RuntimeError, OSError):
                piece = self._lanes[record.device].use(lane, record.domain)
                return piece if end == ALONE or piece.ledger else None
        return None

    def _staying_bytes(self, device: str, lane: int) -> int:
        """Return the bytes that a lane must keep: at least those that sessions with a turn in it
        were told."""
        told = (
            grant.bytes
            for record in self._told.values()
            for grant in record.told
            if grant.lane == lane and record.device == device
        )
        return max(self._host.lane_bytes(device, lane), *told, 0)

    def _is_in(self, device: str, lane: int, domain: str) -> bool:
        """Whether a session has a turn in the lane, or may have one by a direct handoff."""
        return any(
            grant.lane == lane and (record.device, record.domain) == (device, domain)
            for record in self._told.values()
            for grant in record.told
        )

    # --- chunks, where lanes are made of them --------------------------------------------------

    def _has(self, record: SessionRecord, piece: Piece, size: int, end: int) -> bool:
        """Whether the session has all that it needs to use the first `size` bytes of the piece, or
        all of them from one end."""
        peer, chunk = record.peer, self._devices[record.device].chunk_bytes
        has_all = not chunk or peer.chunks >= chunks.count(size, chunk)
        has_ledger = end == ALONE or peer.ledger == piece.number
        return peer.memory == piece.number and has_all and has_ledger

    def _send_chunks(self, peer: Peer, piece: Piece) -> None:
        """Send the chunks that the session lacks. The session makes the chunks that the broker
        lacks."""
        there = piece.memory.descriptors
        if peer.memory != piece.number:
            peer.memory, peer.chunks = piece.number, 0
        if peer.chunks < len(there):
            peer.send_chunks(piece.number, peer.chunks, there[peer.chunks :])
        peer.chunks = len(there)

    def _wanting(self, peer: Peer, number: int) -> chunks.KeptChunks | None:
        """Return the memory with that number if this peer has its turn there and the memory lacks
        chunks; otherwise None."""
        record = self._told.get(peer.session or "")
        if record is None or (told := record.granted) is None or told.memory != number:
            return None
        piece = self._lanes[record.device].numbered(number)
        if piece is None or not isinstance(piece.memory, chunks.KeptChunks):
            return None
        chunk = self._devices[record.device].chunk_bytes
        lacks = len(piece.memory.descriptors) < chunks.count(told.bytes, chunk)
        return piece.memory if lacks else None

    def _trim(self, device: str, piece: Piece, size: int) -> None:
        """Tell the sessions that have more chunks of a piece than it keeps. No session has more
        chunks than the broker, so nearly all calls, ten a second, return at once."""
        chunk = self._devices[device].chunk_bytes
        if not chunk or len(piece.memory.descriptors) <= (kept := chunks.count(size, chunk)):
            return
        for peer in (record.peer for record in self._sessions.all_known()):
            if peer.memory == piece.number and peer.chunks > kept:
                peer.chunks = kept
                peer.send(Trim(piece.number, size))
