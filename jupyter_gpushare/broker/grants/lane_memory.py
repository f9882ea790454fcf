"""The memory behind a device's lanes: one piece for each lane and each trust domain.

A process that maps a piece can read its contents, so a piece belongs to one trust domain: by
default the sessions of one user. At most one piece of a lane has contents, that of the domain that
had the turn last, so that together they never take more than the lane.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from ... import _core
from ...devices.device import MappedMemory


class LedgerPage:
    """Records which part of a lane each of its two concurrent sessions uses. Raises OSError if the
    system has no memory for it."""

    def __init__(self) -> None:
        self.descriptor = _core.make_ledger()

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class Piece:
    """The memory of one lane for one trust domain. The `number` is never used again, on any device,
    so it tells whether a session has the piece."""

    number: int
    memory: MappedMemory

    @cached_property
    def ledger(self) -> LedgerPage:
        """The ledger, made when two sessions first use the lane at once. Raises OSError."""
        return LedgerPage()

    @property
    def has_ledger(self) -> bool:
        return "ledger" in self.__dict__

    def give_up_ledger(self) -> None:
        """Mark the ledger as invalid for all sessions, if there is one."""
        if self.has_ledger:
            _core.spoil_ledger(self.ledger.descriptor)

    def is_spoiled(self) -> bool:
        """Whether a session has found an impossible state in the ledger."""
        return self.has_ledger and not _core.is_ledger_whole(self.ledger.descriptor)


class Lanes:
    """Owns the pieces of all lanes of one device."""

    _numbers = itertools.count(1)  # unique over devices: a connection may have several in turn

    def __init__(
        self, make: Callable[[], MappedMemory], tell: Callable[[Piece, int], None] | None = None
    ) -> None:
        """`make` makes the memory of a lane. `tell` is called with a piece and a number of bytes
        before the piece is shrunk to them, even if it has no more: a process that maps it may have
        to release memory as well."""
        self._make = make
        self._tell = tell or (lambda piece, bytes: None)
        self._pieces: dict[tuple[int, str], Piece] = {}  # by lane and domain
        self._last: dict[int, str] = {}  # lane -> the domain whose piece has contents

    def use(self, lane: int, domain: str) -> Piece:
        """Erase the lane's bytes of other domains, and return the piece for a turn of `domain`.

        Raises RuntimeError where the system has no memory.
        """
        self._empty_of_others(lane, domain)
        if (lane, domain) not in self._pieces:
            self._pieces[lane, domain] = Piece(next(self._numbers), self._make())
        self._last[lane] = domain
        return self._pieces[lane, domain]

    def numbered(self, number: int) -> Piece | None:
        """Return the piece with that number, or None if no lane has it any more."""
        return next((piece for piece in self._pieces.values() if piece.number == number), None)

    def numbers(self) -> list[int]:
        """Return the numbers of all pieces."""
        return [piece.number for piece in self._pieces.values()]

    def number(self, lane: int, domain: str) -> int:
        """Return the number of the piece that a lane has for a domain; 0: none."""
        piece = self._pieces.get((lane, domain))
        return 0 if piece is None else piece.number

    def of(self, domain: str) -> list[int]:
        """Return the lanes in which a domain has a piece."""
        return [lane for lane, whose in self._pieces if whose == domain]

    def follow(self, bytes_of: Callable[[int], int]) -> None:
        """Shrink the pieces to the present sizes of their lanes. A closed lane has 0 bytes, and
        must not have a turn in it."""
        for lane, domain in tuple(self._pieces):
            size = bytes_of(lane)
            self._shrink(self._pieces[lane, domain], size)
            if not size:
                self.abandon(lane, domain)

    def close_emptied(self, domains: Collection[str]) -> None:
        """Close the empty pieces of all domains but these: the others have no session any more. A
        piece with contents stays until the next turn of another domain empties it."""
        for lane, domain in tuple(self._pieces):
            if domain not in domains and self._last.get(lane) != domain:
                self.abandon(lane, domain)

    def abandon_spoiled(self) -> bool:
        """Abandon the pieces with a spoiled ledger; return whether there were any."""
        spoiled = [where for where, piece in self._pieces.items() if piece.is_spoiled()]
        for lane, domain in spoiled:
            self.abandon(lane, domain)
        return bool(spoiled)

    def abandon(self, lane: int, domain: str) -> None:
        """Leave a piece to a process that may still write to it; the next turn gets another one. A
        session in the same lane does not wait for that process."""
        piece = self._pieces.pop((lane, domain), None)
        if piece is not None:
            piece.give_up_ledger()
        if self._last.get(lane) == domain:
            del self._last[lane]

    def empty(self, lane: int, domain: str) -> None:
        """Give the memory of a piece back. It must not have a turn in it."""
        self._shrink(self._pieces[lane, domain], 0)

    def _empty_of_others(self, lane: int, domain: str) -> None:
        last = self._last.get(lane, domain)
        if last != domain:
            self.empty(lane, last)

    def _shrink(self, piece: Piece, size: int) -> None:
        self._tell(piece, size)
        piece.memory.shrink(size)
