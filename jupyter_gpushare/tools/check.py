"""A finding of the doctor."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["ok", "warning", "problem"]


class Check(msgspec.Struct, frozen=True):
    """One check; the sentence of a warning or problem says how to mend it."""

    name: str
    state: State
    sentence: str
