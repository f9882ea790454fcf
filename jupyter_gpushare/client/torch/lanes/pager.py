"""Pagers move persistent memory to a file, and back to the same addresses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from .... import _core
from ..storages.tensors import lent_blocks
from .cuda_chunks import PAUSE_SECONDS, TRIES

FILE_SYSTEMS_IN_MEMORY = ("tmpfs", "ramfs")


class Pager(Protocol):
    """Pages the memory of one process, on any device."""

    def page_out(self, directory: str) -> str:
        """Move the memory to a file in that directory. Return an empty string, or the reason of a
        failure: then nothing is out, except what could not come back."""

    def page_in(self) -> str:
        """Move all memory back. Return an empty string, or which memory is still out, and why."""

    def cancel(self) -> None:
        """Cancel a `page_out` that runs in another thread."""

    def bytes_out(self) -> int:
        """Return the bytes that are in the file now."""


class HostPager:
    """Pages CPU storages, except those that system calls may write to, since a system call cannot
    wait."""

    bytes_out = staticmethod(_core.Pager.bytes_out)
    cancel = staticmethod(_core.Pager.cancel)

    def page_out(self, directory: str) -> str:
        return _core.Pager.page_out(directory, lent_blocks())

    def page_in(self) -> str:
        return _core.Pager.page_in(lent_blocks())


class GpuPager:
    """Pages PyTorch's segments on a GPU."""

    bytes_out = staticmethod(_core.CudaSegments.bytes_out)
    cancel = staticmethod(_core.CudaSegments.cancel)
    page_out = staticmethod(_core.CudaSegments.page_out)

    def page_in(self) -> str:
        """Try for a while, since other processes may still be releasing the room."""
        for _ in range(TRIES - 1):
            if not _core.CudaSegments.page_in():
                return ""
            time.sleep(PAUSE_SECONDS)
        return _core.CudaSegments.page_in()


def lies_in_memory(directory: str) -> bool:
    """Return whether files in the directory use main memory."""
    return _file_system(directory) in FILE_SYSTEMS_IN_MEMORY


def _file_system(directory: str) -> str:
    """Return the kind of the directory's file system, such as ``ext4``; empty if unknown."""
    import psutil

    kinds = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    path = Path(directory).resolve()
    return next((kinds[str(p)] for p in (path, *path.parents) if str(p) in kinds), "")
