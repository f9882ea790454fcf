"""The member of a process group of `torch.distributed` that takes the turns on a device.

Members wait for each other in every collective. If two of them took turns on one device, the member
with the turn would wait in an all-reduce for the member that waits for the turn: a deadlock. So the
first member that begins an iteration on a device leads: it takes turns as usual. The others join
it.

The members agree once in the life of a group, by a key in the group's own rendezvous store, whose
value is the leader. A store that serves two groups in succession gives the second group the same
leader.
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
    """The role of this process in the default group, as it was at the last look."""

    def __init__(self, member: str) -> None:
        self._member = member  # a unique name
        self._group: Callable[[], Any] = lambda: None  # a weak reference: the group may end
        self.joins = False  # another process leads, and this one needs no turn of its own

    def has_joined(self, place: Callable[[], str]) -> bool:
        """Look at the group; return whether this process has just become one that joins. `place`
        returns a name of the device that is unique over all hosts; it is called for a new group
        only."""
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
        except Exception:  # the store has ended, or cannot compare: take turns as usual
            return self._member


def host() -> str:
    """Return one name for all containers of a host."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
