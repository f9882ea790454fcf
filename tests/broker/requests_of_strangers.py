"""Requests that only the owner of the session `first`, or an admin, may make."""

from __future__ import annotations

from jupyter_gpushare.wire import messages as m

TO_ANOTHERS_SESSION: list[m.Message] = [
    m.Open(id="first", name="taken over", device="host"),
    m.Change("first", paused=True),
    m.Change("first", weight=5.0),
    m.Preempt("first"),
    m.Evict("first"),
    m.Cancel("first"),
    m.SetPolicy("fifo"),
    m.SetPolicy(running_lanes=2),
    m.Shutdown(),
]
