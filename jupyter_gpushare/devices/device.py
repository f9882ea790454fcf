"""A device as the broker knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from .nvml import GpuUse


class MappedMemory(Protocol):
    """The memory of a lane, which sessions map through its descriptors."""

    @property
    def descriptors(self) -> list[int]: ...

    def shrink(self, bytes: int) -> None:
        """Give the memory above `bytes` back to the system."""


class Device(NamedTuple):
    """`name` as users type it (host, cuda:0); `capacity_bytes` is the memory that may be shared.

    `make_lane_memory` is absent if the sessions of a lane do not share its memory physically. The
    memory of a lane consists of chunks of `chunk_bytes` that sessions make, or the broker makes it,
    with one descriptor. `uuid` names a GPU for processes that number the GPUs differently. `usage`
    returns the processes that have memory of the device now, or None if that is not known; it is
    absent for devices that are not asked.
    """

    name: str
    capacity_bytes: int
    description: str
    make_lane_memory: Callable[[], MappedMemory] | None = None
    chunk_bytes: int = 0
    uuid: str = ""
    usage: Callable[[], GpuUse | None] | None = None
