"""The slower tier on the host: a file without a name, and the places in it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import torch

from ..... import format
from ....session.memory import PageQuotas
from .shared_quota import SharedQuota

PAGE = 4096  # bytes; a place is whole pages
KEPT_FREE = 0.1  # of the file system, for others
MOST_KEPT_FREE = 2 << 30  # bytes, since a tenth of a large disk is more than others need


NO_QUOTAS = PageQuotas()


class BeyondQuota(OSError):
    """The files would become larger than a setting allows."""


class Extent(NamedTuple):
    """A part of the file, in bytes."""

    begin: int
    size: int


class Places:
    """The parts of a file that are in use, by best fit."""

    def __init__(self) -> None:
        self._free: list[Extent] = []
        self._end = 0
        self.used = 0  # bytes

    def take(
        self, size: int, may_grow: Callable[[int, int], None] = lambda size, end: None
    ) -> Extent:
        """Return a free part. `may_grow` is called before the file grows by `size` bytes to `end`,
        and raises where it must not."""
        size = -(-size // PAGE) * PAGE
        fit = min((f for f in self._free if f.size >= size), key=lambda f: f.size, default=None)
        if fit is None:
            may_grow(size, self._end + size)
            begin, self._end = self._end, self._end + size
            self.used += size
            return Extent(begin, size)
        self.used += size
        self._free.remove(fit)
        if fit.size > size:
            self._free.append(Extent(fit.begin + size, fit.size - size))
        return Extent(fit.begin, size)

    def give(self, place: Extent) -> None:
        """Free a place, and join it with its free neighbours."""
        self.used -= place.size
        begin, end = place.begin, place.begin + place.size
        for other in tuple(self._free):
            if other.begin + other.size == begin:
                begin = other.begin
            elif other.begin == end:
                end = other.begin + other.size
            else:
                continue
            self._free.remove(other)
        self._free.append(Extent(begin, end - begin))


class PageFile:
    """A file in `directory` whose name is removed at once: it ends with the process, however that
    ends. It has no more bytes than the `quotas` allow. `write` and `read` raise OSError, and may
    run in any thread."""

    def __init__(self, directory: str, quotas: PageQuotas = NO_QUOTAS) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self._places, self._quotas = Places(), quotas
        self._share = SharedQuota(directory, quotas.all) if quotas.all else None
        self._left: deque[tuple[Extent, Future[None] | None]] = deque()

    @property
    def used(self) -> int:
        """The bytes of the file that are in use."""
        self._collect()
        return self._places.used

    def take(self, size: int) -> Extent:
        """Return a free place. Raises OSError if that would leave the disk too little room, and
        BeyondQuota."""
        self._collect()
        return self._places.take(size, self._may_grow)

    def _may_grow(self, size: int, end: int) -> None:
        one, all = self._quotas
        if 0 < one < end:
            raise BeyondQuota(f"page_file_bytes allows it {format.size(one)}")
        disk = os.fstatvfs(self._file.fileno())
        kept = min(MOST_KEPT_FREE, int(KEPT_FREE * disk.f_blocks) * disk.f_frsize)
        if disk.f_bavail * disk.f_frsize - size < kept:
            raise OSError(f"less than {format.size(kept)} of its file system would stay free")
        if self._share is not None and not self._share.grow_to(end):
            raise BeyondQuota(f"all_page_files_bytes allows all notebooks {format.size(all)}")

    def leave(self, place: Extent, transfer: Future[None] | None) -> None:
        """Free a place once its transfer has ended. It may be called at any moment, also while
        another function of this object runs."""
        self._left.append((place, transfer))

    def _collect(self) -> None:
        for _ in range(len(self._left)):
            place, transfer = self._left.popleft()
            if transfer is None or transfer.done():
                self._places.give(place)
            else:
                self._left.append((place, transfer))

    def write(self, place: Extent, storage: torch.UntypedStorage) -> None:
        data, at = _bytes_of(storage), place.begin
        while data:
            done = os.pwrite(self._file.fileno(), data, at)
            data, at = data[done:], at + done

    def read(self, place: Extent, storage: torch.UntypedStorage) -> None:
        data, at = _bytes_of(storage), place.begin
        while data:
            done = os.preadv(self._file.fileno(), [data], at)
            if not done:
                raise OSError(f"the page file ends {len(data)} bytes too early")
            data, at = data[done:], at + done


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Return the memory of a storage, which the caller keeps alive."""
    array = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(array).cast("B")
