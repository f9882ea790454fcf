"""What rules have to know of a session at one moment."""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """`state` is that of its SessionView."""

    session: str
    user: str
    group: str
    device: str
    state: str
