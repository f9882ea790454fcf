"""What each session was told of its turn, and of the memory of the lane that it has it in."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ... import _core
from ...devices import Device
from ...wire import chunks
from ...wire.mailbox import write_letter
from ...wire.messages import (
    Grant,
    Successor,
    Trim,
)
from ..peer import Peer
from .lane_memory import Lanes, Piece
from .recovery import Held, Roll

RETURN_SECONDS = 30.0  # within which who has lost its connection in its turn goes on with it
MOST_LOST = 1000


class Place(NamedTuple):
    """Where a session's messages go, on which device it is, and with whom it shares memory.

    `name` and `group` are for people and rules; the scheduler's sentences have no names in them.
    Of a gang `device` is the first; it has no memory of lanes.
    """

    peer: Peer
    device: str
    domain: str
    mailbox: str
    key: str
    name: str = ""
    group: str = ""
    gang: tuple[str, ...] = ()  # all of its devices, where it has several at once

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gang or (self.device,)


class Turns:
    """Of all sessions of a broker. `lane_bytes` says how large a lane of a device is by now."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        places: Mapping[str, Place],
        lane_bytes: Callable[[str, int], int],
        roll: Roll,
    ) -> None:
        self._devices = devices
        self._places = places
        self._lane_bytes = lane_bytes
        self._roll = roll
        self._lanes = {
            device.name: Lanes(device.make_lane_memory, partial(self._trim, device.name))
            for device in devices.values()
            if device.make_lane_memory is not None
        }
        self._granted: dict[str, Grant] = {}  # session -> the turn that it has, as it was told
        self._handed: dict[str, Grant] = {}  # session -> the turn that it may have by letter
        # Session -> a turn that it may bring back, and until when: monotonic seconds.
        self._lost = {held.session: (held.turn, math.inf) for held in roll.absent}
        self._brought: set[str] = set()  # sessions that have brought back the turn that they have

    # --- turns begin and end -------------------------------------------------------------------

    def grant(self, given: _core.Grant) -> None:
        """A gang's is of all of its devices, and of a lane in none of them."""
        self._tell(given.session, given.turn, given.lane)

    def bears_out(self, session: str, turn: int, now: float) -> bool:
        """Whether the session has this turn by what this broker, or the one before, has given."""
        given = (turns.get(session) for turns in (self._granted, self._handed))
        lost, until = self._lost.get(session, (-1, 0.0))
        return turn in [one.turn for one in given if one] or (turn == lost and now < until)

    def is_of_before(self, session: str) -> bool:
        """Whether it had its turn under the broker before, which has not counted all of it."""
        return self._lost.get(session, (0, 0.0))[1] == math.inf

    def adopt(self, session: str, turn: int) -> None:
        """It has had this turn since before its connection, with memory that is its own by now."""
        self._granted[session] = Grant(turn, 0)
        self._brought.add(session)
        self._call_roll()

    def is_back(self, session: str) -> None:
        """With its turn or without: nobody brings one back later."""
        self._lost.pop(session, None)
        self._roll.is_back(session)

    def lost(self, session: str, now: float) -> None:
        """Its connection ended. A turn is brought back once: else it could be kept past its
        deadline by leaving again and again, or turns be saved up for when others wait."""
        told = self._granted.get(session) or self._handed.get(session)
        if told is not None and session not in self._brought:
            self._lost[session] = (told.turn, now + RETURN_SECONDS)
        if len(self._lost) > MOST_LOST:
            self._lost = {name: lost for name, lost in self._lost.items() if now < lost[1]}
            self._lost = dict([*self._lost.items()][-MOST_LOST:])

    def are_over(self, session: str, last: int) -> None:
        """Those up to `last`: what was told of them does not count any more."""
        for turns in (self._granted, self._handed):
            if session in turns and turns[session].turn <= last:
                del turns[session]
        if session not in self._granted:
            self._brought.discard(session)
        self._call_roll()

    def forget(self, session: str) -> None:
        self._granted.pop(session, None)
        self._handed.pop(session, None)
        self._brought.discard(session)
        self._call_roll()

    def holders(self, device: str) -> Iterator[tuple[str, int]]:
        """The sessions of a device that have a turn, each with its lane."""
        for session, grant in self._granted.items():
            if device in self._places[session].devices:
                yield session, grant.lane

    def successor(self, following: _core.Grant | None) -> Successor | None:
        """Nobody who could not be handed the lane as well: then the broker's own Grant does it."""
        if following is None:
            return None
        place = self._places[following.session]
        piece = self._piece(place, following.lane)
        number, size = (piece.number, self._size(place, following.lane)) if piece else (0, 0)
        has_mailbox = place.mailbox and place.key
        if not has_mailbox or (piece and not self._has(place, piece, size)):
            return None
        self._handed[following.session] = grant = Grant(
            following.turn, following.lane, size, number, place.peer.chunks
        )
        self._call_roll()
        return Successor(place.mailbox, write_letter(place.key, grant))

    # --- lanes grow and shrink -----------------------------------------------------------------

    def tell_holders(self) -> None:
        """A lane may have grown while somebody has its turn; one that shrank does so after it."""
        for session, told in tuple(self._granted.items()):
            if told.lane and self._size(self._places[session], told.lane) > told.bytes:
                self._tell(session, told.turn, told.lane)

    def follow_lanes(self) -> None:
        """Give back what lanes that have shrunk or closed do not need any more."""
        for device, lanes in self._lanes.items():
            lanes.follow(partial(self._staying_bytes, device))

    def leave_lane_to(self, peer: Peer, session: str) -> None:
        """A holder that is not dead may still write to the lane: the others get another one."""
        place = self._places[session]
        for turns in (self._granted, self._handed):
            told = turns.pop(session, None)
            if told and told.memory and peer.is_alive():
                self._lanes[place.device].abandon(told.lane, place.domain)

    def leave_domain(self, domain: str) -> None:
        """One who maps the memory of a domain belongs to it no more: turns of the others that begin
        from now on have other memory. Only what somebody is in stays as it is."""
        for device, lanes in self._lanes.items():
            for lane in lanes.of(domain):
                if not self._is_in(device, lane, domain):
                    lanes.empty(lane, domain)
                lanes.abandon(lane, domain)

    def take_chunks(self, peer: Peer, batch: chunks.Batch) -> None:
        """Chunks that a session has made for the lane that it has the turn in.

        Others are for nobody: the session keeps them for itself, as long as it has the lane.
        """
        kept = self._wanting(peer, batch.memory)
        if kept is None or batch.first != len(kept.descriptors):
            chunks.close(batch.descriptors)
        else:
            kept.descriptors += batch.descriptors
            peer.chunks = len(kept.descriptors)

    # --- parts ---------------------------------------------------------------------------------

    def _tell(self, session: str, turn: int, lane: int) -> None:
        """Give a turn, or say how the lane of a turn has changed."""
        place = self._places[session]
        piece = self._piece(place, lane)
        number, size = (piece.number, self._size(place, lane)) if piece else (0, 0)
        if piece is not None and self._devices[place.device].chunk_bytes:
            self._send_chunks(place, piece)
        self._granted[session] = message = Grant(turn, lane, size, number, place.peer.chunks)
        self._call_roll()
        if piece is None or place.peer.memory == number:
            place.peer.send(message)
        else:
            place.peer.memory = number
            place.peer.send_with(message, piece.memory.descriptors[0])

    def _call_roll(self) -> None:
        self._roll.note(
            {
                Held(session, told.turn, self._places[session].mailbox)
                for turns in (self._granted, self._handed)
                for session, told in turns.items()
            }
        )

    def _size(self, place: Place, lane: int) -> int:
        return self._lane_bytes(place.device, lane)

    def _piece(self, place: Place, lane: int) -> Piece | None:
        """None where there is none to be had: then the turn has no memory of the lane's."""
        if place.device in self._lanes and self._size(place, lane):
            with contextlib.suppress(RuntimeError):
                return self._lanes[place.device].use(lane, place.domain)
        return None

    def _staying_bytes(self, device: str, lane: int) -> int:
        """What has to stay: at least what whoever is in the lane, or may be by now, was told."""
        told = (
            grant.bytes
            for turns in (self._granted, self._handed)
            for session, grant in turns.items()
            if grant.lane == lane and self._places[session].device == device
        )
        return max(self._lane_bytes(device, lane), *told, 0)

    # --- chunks, where lanes are made of them --------------------------------------------------

    def _is_in(self, device: str, lane: int, domain: str) -> bool:
        """Whether somebody has a turn there, or may have by letter."""
        return any(
            grant.lane == lane and (place.device, place.domain) == (device, domain)
            for turns in (self._granted, self._handed)
            for session, grant in turns.items()
            for place in [self._places[session]]
        )

    def _has(self, place: Place, piece: Piece, size: int) -> bool:
        """Whether it needs nothing more to use so much of the piece."""
        chunk = self._devices[place.device].chunk_bytes
        has_all = not chunk or place.peer.chunks >= chunks.count(size, chunk)
        return place.peer.memory == piece.number and has_all

    def _send_chunks(self, place: Place, piece: Piece) -> None:
        """Those that the session has not got; it makes what is missing."""
        peer, there = place.peer, piece.memory.descriptors
        if peer.memory != piece.number:
            peer.memory, peer.chunks = piece.number, 0
        if peer.chunks < len(there):
            peer.send_chunks(piece.number, peer.chunks, there[peer.chunks :])
        peer.chunks = len(there)

    def _wanting(self, peer: Peer, number: int) -> chunks.Kept | None:
        """That memory, if it lacks chunks in a turn of this peer's."""
        told = self._granted.get(peer.session or "")
        if peer.session is None or told is None or told.memory != number:
            return None
        device = self._places[peer.session].device
        piece = self._lanes[device].numbered(number)
        if piece is None or not isinstance(piece.memory, chunks.Kept):
            return None
        lacks = len(piece.memory.descriptors) < chunks.count(
            told.bytes, self._devices[device].chunk_bytes
        )
        return piece.memory if lacks else None

    def _trim(self, device: str, piece: Piece, size: int) -> None:
        """Nobody is known to have more chunks of a piece than the broker, so most often, ten times
        a second, there is nobody to tell."""
        chunk = self._devices[device].chunk_bytes
        if not chunk or len(piece.memory.descriptors) <= (kept := chunks.count(size, chunk)):
            return
        for peer in (place.peer for place in self._places.values()):
            if peer.memory == piece.number and peer.chunks > kept:
                peer.chunks = kept
                peer.send(Trim(piece.number, size))
