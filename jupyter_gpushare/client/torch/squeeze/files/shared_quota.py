"""The quota that the page files of all notebooks in one directory share."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from itertools import chain, islice

UNIT = 1 << 20  # bytes of a page file for which its process locks one byte
NAME = "squeezed.quota"
TAKEN = (errno.EAGAIN, errno.EACCES)
FOR_ALL = 0o666  # notebooks of other users may write to the same directory


class SharedQuota:
    """The share of one page file in the `most` bytes for all in `directory`.

    Its process locks a byte of a file there for each UNIT. So no two processes have the same unit,
    and no process has to know the others. The kernel drops the locks when the last process that has
    the page file ends, however it ends. Raises OSError.
    """

    def __init__(self, directory: str, most: int) -> None:
        self._count = most // UNIT
        self._file = _opened(os.path.join(directory, NAME))
        self._mine: set[int] = set()
        self._next = 0  # where to look first

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def grow_to(self, size: int) -> bool:
        """Take what a page file of `size` bytes needs; return False if there is not that much."""
        wanted = -(-size // UNIT) - len(self._mine)
        taken = list(islice(self._locked(), max(0, wanted)))
        if len(taken) < wanted:
            for unit in taken:
                self._set(fcntl.F_UNLCK, unit)
            return False
        self._mine.update(taken)
        return True

    def _locked(self) -> Iterator[int]:
        """Lock units that are free, one after the other."""
        for unit in chain(range(self._next, self._count), range(self._next)):
            if unit not in self._mine and self._lock(unit):
                self._next = unit
                yield unit

    def _lock(self, unit: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, unit)
        except OSError as error:
            if error.errno in TAKEN:
                return False
            raise
        return True

    def _set(self, kind: int, unit: int) -> None:
        lock = struct.pack("hhqqi0q", kind, os.SEEK_SET, unit, 1, 0)  # C's struct flock
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)


def _opened(path: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    file = os.open(path, flags | os.O_CREAT, FOR_ALL)
    with contextlib.suppress(PermissionError):  # another user has been faster
        os.fchmod(file, FOR_ALL)  # whatever the mask of this process
    return file
