"""One limit on the joint memory of several processes, enforced as Linux does when memory runs out.

A control group would need an administrator, and counts the cache of files and the libraries' code,
which no device holds. So a watcher looks at all of them as often as it is called.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

PAGE = os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int:
    """Return the resident private memory of a process, without files and lanes; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _, resident, of_files, *_ = statm.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(resident) - int(of_files)) * PAGE


class Limit:
    """A limit in bytes on what these processes have taken from now on, and on the lanes, once."""

    def __init__(self, size: int, pids: Iterable[int], lanes: Callable[[], int]) -> None:
        self._size = size
        self._lanes = lanes
        self._before = {pid: own_bytes(pid) for pid in pids}
        self.peak = 0

    def look(self) -> None:
        """Kill the process that has taken most, if all together exceed the limit."""
        taken = {pid: own_bytes(pid) - before for pid, before in self._before.items()}
        total = sum(max(0, size) for size in taken.values()) + self._lanes()
        self.peak = max(self.peak, total)
        if total > self._size:
            os.kill(max(taken, key=taken.__getitem__), signal.SIGKILL)
