"""Which member of a process group of `torch.distributed` takes the turns on a device.

Members wait for each other in every collective. If two of them took turns on one device, the one
that has the turn would wait in an all-reduce for the one that waits for the turn. So the first of
those on a device that begins an iteration leads: it takes turns as ever. The others join it.

They agree once in a group's life, by a key of the group's own rendezvous store: its value is the
leader. A store that serves two groups, one after the other, so gives the second the same leader.
"""

from __future__ import annotations

import socket
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOOT = Path("/proc/sys/kernel/random/boot_id")
C10D = "torch.distributed.distributed_c10d"


class Membership:
    """Of this process in the default group, as it was at the last look."""

    def __init__(self, member: str) -> None:
        self._member = member  # unlike all others'
        self._group: Callable[[], Any] = lambda: None  # a weak reference: the group may end
        self.joins = False  # another process leads, and this one needs no turn of its own

    def has_joined(self, place: Callable[[], str]) -> bool:
        """Look; whether this process has just become one that joins. `place` names the device like
        nothing else on any host, and is asked only where a group is new."""
        c10d = sys.modules.get(C10D)
        group = None if c10d is None else c10d.GroupMember.WORLD
        if group is None:
            self.joins = False
        elif group is not self._group():
            self.joins = group.size() > 1 and self._leader(c10d, place()) != self._member
            self._group = weakref.ref(group)
            return self.joins
        return False

    def _leader(self, c10d: Any, place: str) -> str:
        try:
            store = c10d._get_default_store()
            return str(store.compare_set(f"gpushare/{place}", "", self._member).decode())
        except Exception:  # a store that has gone, or one that cannot compare: turns are as ever
            return self._member


def host() -> str:
    """One name for all containers of a host."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
