"""Requests that only the owner of the session `first`, or an admin, may make."""

from __future__ import annotations

from jupyter_gpushare.wire.messages import (
    Cancel,
    Change,
    Evict,
    Message,
    Open,
    Preempt,
    SetPolicy,
    Shutdown,
)

TO_ANOTHERS_SESSION: list[Message] = [
    Open(id="first", name="taken over", device="host"),
    Change("first", paused=True),
    Change("first", weight=5.0),
    Preempt("first"),
    Evict("first"),
    Cancel("first"),
    SetPolicy("fifo"),
    SetPolicy(running_lanes=2),
    Shutdown(),
]
