"""The bodies of requests and answers that are no words of the protocol."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from jupyter_gpushare.protocol import PolicyView


class SessionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of a session; what is absent stays as it is."""

    weight: Annotated[float, Meta(gt=0)] | None = None
    priority: int | None = None
    paused: bool | None = None


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy to follow, and how many lanes may run at once (0: as the policy says)."""

    policy: str | None = None
    running_lanes: Annotated[int, Meta(ge=0)] | None = None
    device: str | None = None


class PolicyState(msgspec.Struct, frozen=True):
    """The policy in force, those to choose from, and the lanes that may run on each device."""

    policy: str
    policies: list[PolicyView]
    running_lanes: dict[str, int]


class Failure(msgspec.Struct, frozen=True):
    """Why a request was refused: a sentence, and a word for programs."""

    message: str
    code: str
