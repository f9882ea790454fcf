"""Pagers move persistent memory to a file, and back to the same addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from .... import _core
from ..storages.tensors import lent_blocks

FILE_SYSTEMS_IN_MEMORY = ("tmpfs", "ramfs")


class Pager(Protocol):
    """Pages the memory of one process, on any device. `_core.CudaSegments` is the one for a GPU."""

    def page_out(self, directory: str) -> str:
        """Move the memory to a file in that directory. Return an empty string, or why nothing was
        moved."""

    def page_in(self) -> str:
        """Move all memory back. Return an empty string, or what could not be read."""

    def cancel(self) -> None:
        """Cancel a `page_out` that runs in another thread."""

    def bytes_out(self) -> int:
        """Return the bytes that are in the file now."""


class HostPager:
    """Pages CPU storages, except those that system calls may write to, which cannot wait."""

    bytes_out = staticmethod(_core.Pager.bytes_out)
    cancel = staticmethod(_core.Pager.cancel)

    def page_out(self, directory: str) -> str:
        return _core.Pager.page_out(directory, lent_blocks())

    def page_in(self) -> str:
        return _core.Pager.page_in(lent_blocks())


def lies_in_memory(directory: str) -> bool:
    """Return whether files in the directory use main memory."""
    return _file_system(directory) in FILE_SYSTEMS_IN_MEMORY


def _file_system(directory: str) -> str:
    """Return the kind of the directory's file system, such as ``ext4``; empty if unknown."""
    import psutil

    kinds = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    path = Path(directory).resolve()
    return next((kinds[str(p)] for p in (path, *path.parents) if str(p) in kinds), "")
