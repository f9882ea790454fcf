"""Moves storages to the slower tier and back: at once, or ahead of time in two threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ....session.memory import PageQuotas
from .page_file import Extent, PageFile

FIRST_RATE = 1e9  # bytes per second each way, until transfers have been measured
WEIGHT = 0.2  # of the latest transfer in the measured rate
LEAST_TIMED = 1 << 20  # bytes; shorter transfers tell little of the rate


class Tier:
    """The slower tier of one process: a file, made at its first use in the directory that
    `directory` returns, within the `quotas`."""

    def __init__(self, directory: Callable[[], str], quotas: PageQuotas) -> None:
        self._directory, self._quotas = directory, quotas
        self._made: PageFile | None = None
        self.pace = 1 / FIRST_RATE  # seconds per byte each way
        self._start()

    def _start(self) -> None:
        self._writer = ThreadPoolExecutor(1, "squeeze-writes")
        self._reader = ThreadPoolExecutor(1, "squeeze-reads")
        self.written = self.read_bytes = 0  # bytes, in total

    def forget(self) -> None:
        """Use no thread and no file of the parent in a forked child."""
        self._made = None
        self._start()

    def close(self) -> None:
        """End the threads after their transfers; the file goes with its last place."""
        self._writer.shutdown()
        self._reader.shutdown()

    @property
    def used(self) -> int:
        return 0 if self._made is None else self._made.used

    def take(self, size: int) -> tuple[PageFile, Extent]:
        """Return a free place of that many bytes. Raises OSError."""
        if self._made is None:
            self._made = PageFile(self._directory(), self._quotas)
        return self._made, self._made.take(size)

    def write(self, file: PageFile, place: Extent, storage: torch.UntypedStorage) -> None:
        begin = time.perf_counter()
        file.write(place, storage)
        self.written += storage.nbytes()
        self._time(storage.nbytes(), time.perf_counter() - begin)

    def read(self, file: PageFile, place: Extent, storage: torch.UntypedStorage) -> None:
        begin = time.perf_counter()
        file.read(place, storage)
        self.read_bytes += storage.nbytes()
        self._time(storage.nbytes(), time.perf_counter() - begin)

    def write_behind(
        self, file: PageFile, place: Extent, storage: torch.UntypedStorage
    ) -> Future[None]:
        return self._writer.submit(self.write, file, place, storage)

    def read_ahead(
        self, file: PageFile, place: Extent, storage: torch.UntypedStorage
    ) -> Future[None]:
        return self._reader.submit(self.read, file, place, storage)

    def _time(self, size: int, seconds: float) -> None:
        if size >= LEAST_TIMED:
            self.pace += WEIGHT * (seconds / size - self.pace)
