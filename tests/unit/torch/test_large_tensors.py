"""Memory that is allocated counts as far as it is touched, and growth beyond the device fails no
training that runs."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
from torch import nn

from jupyter_gpushare import _core
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.errors import DoesNotFit
from jupyter_gpushare.settings import Settings

MIB = 1 << 20
CAPACITY = 192 * MIB
PART = 64 * MIB  # a third; four of them never fit


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    small = msgspec.structs.replace(
        settings, host_capacity_bytes=CAPACITY, report_seconds=0.01, quantum_seconds=0.01
    )
    yield sharing.start(small, device="host", name="ours")
    sharing.stop()


@pytest.fixture
def iterate() -> Callable[[], None]:
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.ones(8, 64)

    def iterate() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return iterate


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Free what earlier tests left. It would count until it is freed; and malloc could give its
    pages, which are touched, to a large tensor."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def untouched(parts: int) -> list[torch.Tensor]:
    return [torch.empty(PART, dtype=torch.uint8) for _ in range(parts)]


def until(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        act()


# --- counting -------------------------------------------------------------------------------------


def seen(memory: TorchMemory, size: int) -> Callable[[], bool]:
    """Return a check whether this number of bytes is alive, to a MiB. Looks are rare, so it is
    repeated."""
    _core.AllocationCounter.take_peak()
    return lambda: abs(memory.live() - size) < MIB


def test_a_large_tensor_counts_as_far_as_it_is_touched() -> None:
    memory = TorchMemory()
    start = memory.live()
    (large,) = untouched(1)
    boundary = _core.AllocationCounter.take_peak
    until(seen(memory, start), boundary)
    large[: 10 * MIB] = 1
    until(seen(memory, start + 10 * MIB), boundary)
    large[-10 * MIB :] = 1
    until(seen(memory, start + 20 * MIB), boundary)
    large.fill_(1)
    until(seen(memory, start + PART), boundary)
    del large
    assert abs(memory.live() - start) < MIB


def test_a_large_tensor_that_is_freed_untouched_leaves_nothing_behind() -> None:
    memory = TorchMemory()
    start = memory.live()
    for _ in range(3):
        large = untouched(4)
        until(seen(memory, start), _core.AllocationCounter.take_peak)
        del large
        assert memory.live() == start


def test_a_peak_contains_bytes_that_were_touched_inside_of_the_iteration() -> None:
    memory = TorchMemory()
    start = memory.live()
    large = untouched(4)
    until(seen(memory, start), _core.AllocationCounter.take_peak)
    for _ in range(4):
        memory.begin()
        torch.ones(PART, dtype=torch.uint8)
        memory.end()
    assert abs(memory.demand().ephemeral_bytes - PART) < MIB
    del large


# --- demands --------------------------------------------------------------------------------------


def test_a_training_beside_more_untouched_memory_than_the_device_has_runs(
    session: Session, iterate: Callable[[], None]
) -> None:
    buffers = untouched(4)
    assert sum(buffer.nbytes for buffer in buffers) > CAPACITY
    for _ in range(50):
        iterate()
    assert session.iterations >= 49
    assert session.take_notices() == []
    assert session.memory.demand().persistent_bytes < CAPACITY


def test_a_newcomer_that_can_never_fit_is_refused_with_the_numbers(
    session: Session, iterate: Callable[[], None]
) -> None:
    buffers = [buffer.fill_(1) for buffer in untouched(4)]
    with pytest.raises(DoesNotFit, match=r"needs .* \(model and data .* the device has 192"):
        until(lambda: False, iterate)  # the answer takes its time
    assert buffers[0].all()


def test_a_training_that_outgrows_the_device_continues_and_is_told_once(
    session: Session, iterate: Callable[[], None]
) -> None:
    buffers = untouched(4)
    for _ in range(10):
        iterate()
    for buffer in buffers:
        buffer.fill_(1)
    notices: list[str] = []

    def looking() -> None:
        iterate()
        notices.extend(session.take_notices())

    until(lambda: bool(notices), looking)
    before = session.iterations
    for _ in range(50):
        looking()
    assert session.iterations >= before + 49
    (told,) = notices
    assert told.startswith("this notebook needs 256")
    assert "the device has 192" in told
