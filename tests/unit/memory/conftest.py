"""A lane that is overwritten after every boundary, as by another session."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from jupyter_gpushare import _core

MIB = 1 << 20
LARGE = MIB // 4  # floats in one MiB
WINDOW = 256 * MIB  # addresses; a process keeps its one window until it ends
OPEN_ALREADY = "a window of addresses is open already"


class SharedLane:
    """This process's lane on a memory of its own; the test overwrites all of it with 0xFF, as
    other sessions may."""

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
        _core.Lane.forget()
        os.close(self.descriptor)


def in_child(check: Callable[[], bool]) -> None:
    """Fork; the child runs `check` and must find it true."""
    with beside_child(check):
        pass


@contextlib.contextmanager
def beside_child(check: Callable[[], bool]) -> Iterator[None]:
    """The same, while this process goes on. A child that hangs ends with the test."""
    pid = os.fork()
    if pid == 0:
        good = False
        with contextlib.suppress(BaseException):
            good = check()
        os._exit(0 if good else 1)
    process = os.pidfd_open(pid)
    try:
        yield
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def lane() -> Iterator[SharedLane]:
    assert _core.AllocationCounter.install() == ""
    assert _core.Lane.open(WINDOW) in ("", OPEN_ALREADY)
    gc.collect()
    _core.Lane.forget()  # which allocations survived iterations of other tests
    opened = SharedLane(64 * MIB)
    yield opened
    opened.close()
