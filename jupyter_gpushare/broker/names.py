"""Names of notebooks, for whoever may see them.

The scheduler knows a notebook by a mark, and its sentences have marks where people read names. So
one picture and one encoding of it serve all lookers: names are put in as it leaves the broker.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

MARK = re.compile("\x02([A-Za-z0-9_-]+)\x03")
ENCODED_MARK = re.compile(rb"\\u0002([A-Za-z0-9_-]+)\\u0003")

GONE = "a notebook that has ended"

Namer = Callable[[str], str]  # the name of the notebook with this id


def mark(session: str) -> str:
    """In place of a name, which has no such characters in it."""
    return f"\x02{session}\x03"


def unmarked(text: str, name: Namer) -> str:
    return MARK.sub(lambda found: name(found[1]), text)


def unmarked_json(body: bytes, name: Namer) -> bytes:
    """In what was encoded with marks in it."""
    return ENCODED_MARK.sub(lambda found: msgspec.json.encode(name(found[1].decode()))[1:-1], body)


def hidden(user: str) -> str:
    """For those who may not see it."""
    return f"a notebook of {user}"
