"""The bodies of requests and answers that are no messages of the protocol."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from jupyter_gpushare.wire.messages import (
    MAX_WEIGHT,
    MIN_WEIGHT,
    Cancel,
    Change,
    ClassMode,
    Evict,
    Preempt,
    SetPolicy,
)
from jupyter_gpushare.wire.snapshot import PolicyView

NAMESPACE = "jupyter-gpushare/api/v1"  # of the routes, below the server's base URL
Wish: TypeAlias = Change | ClassMode | Preempt | Evict | Cancel | SetPolicy


class SessionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a session; a field that is absent stays as it is."""

    weight: Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)] | None = None
    priority: int | None = None
    paused: bool | None = None


class SessionAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to a session: to yield its turn, to page out, or to cancel its wait."""

    ask: Literal["yield", "page_out", "cancel"] | None = None


ASKS: dict[str | None, type[Preempt] | type[Evict] | type[Cancel]] = {
    "yield": Preempt,
    "page_out": Evict,
    "cancel": Cancel,
}


class JobAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to a job: to end, or to leave the queue."""

    ask: Literal["cancel"] | None = None


class JobLog(msgspec.Struct, frozen=True):
    """The end of what the ranks of a job have printed; `is_cut`: there is more before it."""

    text: str
    is_cut: bool


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy to follow, and how many lanes may run at once (0: as the policy says)."""

    policy: str | None = None
    running_lanes: Annotated[int, Meta(ge=0)] | None = None
    device: str | None = None


class ClassChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Begin a class of a group on a device, or on all; it ends by itself after `seconds`.

    If not `on`, end it.
    """

    group: str = ""
    on: bool = False
    device: str | None = None
    seconds: Annotated[float, Meta(gt=0)] | None = None


class PolicyState(msgspec.Struct, frozen=True):
    """The policy in force, those to choose from, and the lanes that may run on each device."""

    policy: str
    policies: list[PolicyView]
    running_lanes: dict[str, int]


class Viewer(msgspec.Struct, frozen=True, tag=True):
    """The viewer and the permissions that they have.

    The broker takes the sessions of `user` to be theirs. An administrator may change all sessions
    and the policy; a viewer without `may_change` may only look. `kernels` are this server's, with
    their process ids. If the broker knows these processes by other ids, `sees_processes` is false,
    and there are none.
    """

    user: str
    is_administrator: bool
    may_change: bool
    kernels: dict[str, int]
    sees_processes: bool


class Failure(msgspec.Struct, frozen=True):
    """Why a request was refused: a sentence, and a word for programs."""

    message: str
    code: str
