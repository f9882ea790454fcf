"""A lane that is overwritten after every boundary, as by another session."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest
import torch

from jupyter_gpushare import _core

MIB = 1 << 20
WINDOW = 256 * MIB  # addresses, of which a process has one window for good
OPEN_ALREADY = "a window of addresses is open already"


class SharedLane:
    """This process's lane on a memory of its own; everybody else writes 0xFF into all of it."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("lane")
        self.promoted: list[int] = []  # bytes, at each boundary
        self.resize(size)

    def resize(self, size: int) -> None:
        if os.fstat(self.descriptor).st_size < size:
            os.ftruncate(self.descriptor, size)
        self._noise = b"\xff" * size
        assert _core.Lane.attach(self.descriptor, size) == ""

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        _core.Lane.enter()
        try:
            yield
        finally:
            _core.Lane.leave()
            self.promoted.append(_core.Lane.promote())
            os.pwrite(self.descriptor, self._noise, 0)
            assert _core.Lane.is_valid() == ""

    def close(self) -> None:
        _core.Lane.promote()
        assert _core.Lane.detach() == ""
        os.close(self.descriptor)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def lane() -> Iterator[SharedLane]:
    assert _core.AllocationCounter.install() == ""
    assert _core.Lane.open(WINDOW) in ("", OPEN_ALREADY)
    gc.collect()
    opened = SharedLane(64 * MIB)
    yield opened
    opened.close()
