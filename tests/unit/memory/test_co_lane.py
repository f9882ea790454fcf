"""Two processes compute at once in one lane, each from its own end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare._core_testing import overflows, waits

from .conftest import LARGE, MIB, beside_child

PATIENCE = 60.0  # seconds; a process that waits longer for the other one fails


class Line:
    """How the two processes wait for each other, and the lane that both have."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ends = socket.socketpair()
        self._memory = os.memfd_create("lane")
        self._ledger = _core.make_ledger()

    def attach(self, end: int) -> None:
        self._mine = self._ends[end]
        self._mine.settimeout(PATIENCE)
        self._ends[1 - end].close()  # so that the other process is noticed to have ended
        os.ftruncate(self._memory, MIB)
        lane_end = _core.LaneEnd(self._ledger, end, str(self._directory))
        assert _core.Lane.attach(self._memory, MIB, lane_end) == ""

    def meet(self) -> None:
        self._mine.sendall(b".")
        assert self._mine.recv(1) == b"."

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for descriptor in (self._memory, self._ledger):
            os.close(descriptor)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    opened = Line(tmp_path)
    yield opened
    opened.close()


@contextlib.contextmanager
def iteration() -> Iterator[None]:
    _core.Lane.enter()
    try:
        yield
    finally:
        _core.Lane.leave()
        _core.Lane.promote()
        assert _core.Lane.is_valid() == ""


@pytest.mark.usefixtures("lane")
def test_a_thread_that_has_pythons_lock_gets_private_memory_instead_of_waiting(line: Line) -> None:
    def fill_the_lane() -> bool:
        line.attach(1)
        with iteration():
            whole = torch.full((LARGE,), 1.0)
            line.meet()
            line.meet()
            del whole
        return waits(_core.Lane.co_lane_usage()) == 0

    with beside_child(fill_the_lane):
        line.attach(0)
        line.meet()
        before = overflows(_core.Lane.usage())
        with iteration():
            made = torch.tensor([2.0] * LARGE)  # PyTorch keeps the lock while it makes this
            assert waits(_core.Lane.co_lane_usage()) == 0
            line.meet()
        assert made.sum() == 2 * LARGE
        assert overflows(_core.Lane.usage()) == before + 1
