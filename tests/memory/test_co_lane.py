"""Two processes compute at once in one lane, each from its own end: what they compute is the same
to the last bit as alone, and both need no more than the lane."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from jupyter_gpushare import _core
from jupyter_gpushare._core_testing import overflows, spills, waits

from ..programs.iterations import Bits, bits, cnn, transformer
from ..programs.networks import of_tokens, tokens
from .conftest import MIB, SharedLane, beside_child

CHUNK = 64 << 10
LARGE = MIB // 4  # floats in one MiB

PATIENCE = 60.0  # seconds; a process that waits longer for the other one fails
OUTSIDE = 3  # iterations, as in a session: what the first ones leave would lie in the lane for good
ALONE = 4
TOGETHER = 4  # in a lane of each size
# Of the larger of the two peaks. In the first lane nothing is known of iterations that compute
# twice; in the later ones it is.
SIZES = (1.2, 1.0, 1.5)


class Line:
    """What the two processes say to each other, and what both have."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        self._end = 0
        self.memories = [os.memfd_create("lane") for _ in SIZES]
        self.ledgers = [_core.make_ledger() for _ in SIZES]

    def become(self, end: int) -> None:
        self._end = end
        self._ends[1 - end].close()  # so that the other process is noticed to have ended
        self._ends[end].settimeout(PATIENCE)

    def exchange(self, number: int) -> int:
        """Wait for the other process; return its number."""
        mine = self._ends[self._end]
        mine.sendall(struct.pack("q", number))
        return int(struct.unpack("q", mine.recv(8, socket.MSG_WAITALL))[0])

    def meet(self) -> None:
        self.exchange(0)

    def attach(self, at: int, size: int, directory: Path) -> None:
        os.ftruncate(self.memories[at], size)
        end = _core.LaneEnd(self.ledgers[at], self._end, str(directory))
        assert _core.Lane.attach(self.memories[at], size, end) == ""

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for descriptor in (*self.memories, *self.ledgers):
            os.close(descriptor)


@pytest.fixture
def line() -> Iterator[Line]:
    opened = Line()
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


class Training:
    """Iterations of which some compute twice: their first blocks are those of the others, so that
    both processes need much more than they have said."""

    def __init__(self, name: str, seed: int) -> None:
        if name == "cnn":
            self.model, self.x, self.y = cnn()
            self.loss_of = functional.cross_entropy
        else:
            torch.manual_seed(0)
            self.model, (self.x, self.y), self.loss_of = transformer(), tokens(), of_tokens
        torch.manual_seed(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.losses: list[float] = []

    def iterate(self, passes: int = 1, meet: Callable[[], None] = lambda: None) -> None:
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(self.x), self.y)
        meet()
        for _ in range(1, passes):
            loss = loss + self.loss_of(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def bits(self) -> Bits:
        return bits(self.losses, self.model)


def alone(name: str, seed: int) -> Bits:
    training = Training(name, seed)
    for _ in range(OUTSIDE):
        training.iterate()
    for _ in range(ALONE):
        training.iterate(passes=2)
    for _ in SIZES:
        for _ in range(TOGETHER - 1):
            training.iterate()
        training.iterate(passes=2)
    return training.bits()


def beside(name: str, seed: int, line: Line, directory: Path) -> Bits:
    """The same as `alone`: first in a lane of its own, and then in lanes with two ends."""
    training = Training(name, seed)
    for _ in range(OUTSIDE):
        training.iterate()
    own_lane, peak = SharedLane(64 * MIB), 0
    for _ in range(ALONE):
        with iteration():
            training.iterate(passes=2)
        peak = max(peak, _core.Lane.usage().footprint)
    os.close(own_lane.descriptor)
    largest = max(peak, line.exchange(peak))
    before = overflows(_core.Lane.usage())
    for at, part in enumerate(SIZES):
        chunks = int(part * largest) // CHUNK + 1
        line.attach(at, chunks * CHUNK, directory)
        line.meet()  # each has its end
        for _ in range(TOGETHER - 1):
            with iteration():
                training.iterate()
        line.meet()
        has_room_for_halves = part == SIZES[0]  # and not for one half beside one whole
        with iteration():
            training.iterate(2, line.meet if has_room_for_halves else lambda: None)
        line.meet()  # none of them leaves the other one alone
        both = spills(_core.Lane.co_lane_usage())
        both += line.exchange(both)
        assert both > 0 or not has_room_for_halves
        assert not _core.Lane.co_lane_usage().is_lost
    # at most one iteration of each lane finds out that it has no room for places low in it
    assert overflows(_core.Lane.usage()) - before <= len(SIZES)
    return training.bits()


@pytest.mark.system
@pytest.mark.parametrize("name", ["cnn", "transformer"])
@pytest.mark.usefixtures("lane")
def test_two_trainings_at_once_are_the_same_bit_by_bit_in_no_more_than_the_lane(
    name: str, line: Line, tmp_path: Path
) -> None:
    def train(end: int) -> bool:
        line.become(end)
        return beside(name, end, line, tmp_path) == alone(name, end)

    with beside_child(lambda: train(1)):
        assert train(0)


@pytest.mark.usefixtures("lane")
def test_a_thread_that_has_pythons_lock_gets_private_memory_instead_of_waiting(
    line: Line, tmp_path: Path
) -> None:
    def fill_the_lane() -> bool:
        line.become(1)
        line.attach(0, MIB, tmp_path)
        with iteration():
            whole = torch.full((LARGE,), 1.0)
            line.meet()
            line.meet()
            del whole
        return waits(_core.Lane.co_lane_usage()) == 0

    with beside_child(fill_the_lane):
        line.become(0)
        line.attach(0, MIB, tmp_path)
        line.meet()
        before = overflows(_core.Lane.usage())
        with iteration():
            made = torch.tensor([2.0] * LARGE)  # PyTorch keeps the lock while it makes this
            assert waits(_core.Lane.co_lane_usage()) == 0
            line.meet()
        assert made.sum() == 2 * LARGE
        assert overflows(_core.Lane.usage()) == before + 1
