"""The device `host`: main memory and cores of this machine or container."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .._core import HostLaneMemory
from ..settings import Settings
from .device import Device

SHARED_FRACTION = 0.9  # the rest is for the system, the Jupyter servers and the page cache
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)


def find(settings: Settings) -> list[Device]:
    capacity = settings.host_capacity_bytes or int(SHARED_FRACTION * memory_bytes())
    return [Device("host", capacity, "main memory and cores", partial(HostLaneMemory, capacity))]


def memory_bytes() -> int:
    """Return the memory of this machine, or of this container where that is less."""
    import psutil

    total: int = psutil.virtual_memory().total
    return min([total, *(limit for path in CGROUP_LIMITS if (limit := _limit(path)))])


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such controller, or "max"
        return None
