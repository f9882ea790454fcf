"""Names of notebooks, for whoever may see them.

The scheduler knows a notebook by a mark, and its sentences have marks where people read names. So
one picture and one encoding of it serve all lookers: names are put in as it leaves the broker.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

MARK = re.compile("\x02([A-Za-z0-9_-]+)\x03")
ENCODED_MARK = re.compile(rb"\\u0002([A-Za-z0-9_-]+)\\u0003")

GONE = "a notebook that has ended"

_encode = msgspec.json.Encoder().encode
Namer = Callable[[str], str]  # the name of the notebook with this id


def mark(session: str) -> str:
    """In place of a name, which has no such characters in it."""
    return f"\x02{session}\x03"


def unmarked(text: str, name: Namer) -> str:
    return MARK.sub(lambda found: name(found[1]), text)


def hidden(user: str) -> str:
    """For those who may not see it."""
    return f"a notebook of {user}"


class Body:
    """Something encoded, with marks in it: all names are hidden once, and few put in for each."""

    def __init__(self, encoded: bytes, hidden: Namer) -> None:
        pieces = ENCODED_MARK.split(encoded)  # every second one is what was marked
        self._cuts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        in_place = {piece: _in_json(hidden(piece.decode())) for piece in {*pieces[1::2]}}
        begins = 0
        for index, piece in enumerate(pieces):
            if index % 2:
                pieces[index] = in_place[piece]
                self._cuts[piece.decode()].append((begins, begins + len(pieces[index])))
            begins += len(pieces[index])
        self._hidden = b"".join(pieces)

    def showing(self, visible: Iterable[str], name: Namer) -> bytes:
        """With the names of these notebooks, while all others are hidden."""
        cuts = [
            (begins, ends, shown)
            for session in visible
            for shown in [_in_json(name(session))]
            for begins, ends in self._cuts.get(session, ())
        ]
        pieces, at = [], 0
        for begins, ends, shown in sorted(cuts):
            pieces += [self._hidden[at:begins], shown]
            at = ends
        return b"".join([*pieces, self._hidden[at:]])


def _in_json(text: str) -> bytes:
    return _encode(text)[1:-1]
