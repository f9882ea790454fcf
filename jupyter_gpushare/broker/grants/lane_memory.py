"""The memory behind a device's lanes: one piece for each lane and each trust domain.

A process that maps a piece can read what is in it, so a piece belongs to one trust domain: by
default the sessions of one user. Of the pieces of a lane at most one has anything in it, that of
the domain that had the turn last, so that together they never take more than the lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ...devices.device import LaneMemory


@dataclass(frozen=True)
class Piece:
    """The memory of one lane for one trust domain. The `number` is never used again, on any device,
    so it tells whether a session has the piece."""

    number: int
    memory: LaneMemory


class Lanes:
    """Owns the pieces of all lanes of one device. `make` makes the memory of a lane."""

    _numbers = itertools.count(1)  # of all devices, since a connection may carry one after another

    def __init__(
        self, make: Callable[[], LaneMemory], tell: Callable[[Piece, int], None] | None = None
    ) -> None:
        """`tell` is called with a piece and a number of bytes before the piece is shrunk to that,
        even where it has no more: a process that maps it may have to let go as well."""
        self._make = make
        self._tell = tell or (lambda piece, bytes: None)
        self._pieces: dict[tuple[int, str], Piece] = {}  # by lane and domain
        self._last: dict[int, str] = {}  # lane -> the domain that has something in it

    def use(self, lane: int, domain: str) -> Piece:
        """The piece for a turn of `domain`; what another domain left in the lane is gone.

        Raises RuntimeError where the system has no memory to give.
        """
        self._empty_of_others(lane, domain)
        if (lane, domain) not in self._pieces:
            self._pieces[lane, domain] = Piece(next(self._numbers), self._make())
        self._last[lane] = domain
        return self._pieces[lane, domain]

    def numbered(self, number: int) -> Piece | None:
        """The piece with that number, while a lane has it."""
        return next((piece for piece in self._pieces.values() if piece.number == number), None)

    def of(self, domain: str) -> list[int]:
        """The lanes in which a domain has a piece."""
        return [lane for lane, whose in self._pieces if whose == domain]

    def follow(self, bytes_of: Callable[[int], int]) -> None:
        """Lanes have shrunk, or are no more (then they have 0 bytes); no turn may be in the
        latter."""
        for lane, domain in tuple(self._pieces):
            size = bytes_of(lane)
            self._shrink(self._pieces[lane, domain], size)
            if not size:
                self.abandon(lane, domain)

    def abandon(self, lane: int, domain: str) -> None:
        """Leave a piece to the process that still writes to it; the next turn gets another one."""
        self._pieces.pop((lane, domain), None)
        if self._last.get(lane) == domain:
            del self._last[lane]

    def empty(self, lane: int, domain: str) -> None:
        """Give the memory back; no turn may be in the piece."""
        self._shrink(self._pieces[lane, domain], 0)

    def _empty_of_others(self, lane: int, domain: str) -> None:
        last = self._last.get(lane, domain)
        if last != domain:
            self.empty(lane, last)

    def _shrink(self, piece: Piece, size: int) -> None:
        self._tell(piece, size)
        piece.memory.shrink(size)
