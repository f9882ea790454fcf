"""Iterations of a process that has a lane on the fake GPU, without a broker. The program has the
lane's memory itself, and is the neighbour that overwrites it after each turn."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from program import MIB, control, main, no_room
from tensors import is_all, is_inside, memory

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.client.torch.storages import pools
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.fd_channel import Channel

CAPACITY = 512 * MIB
LANE = 96 * MIB


class Neighbour:
    """Keeps the chunks of one lane, and fills them with 0xFF."""

    def __init__(self) -> None:
        self._ours, theirs = Channel.pair()
        self.memory = LaneMemory(1, -1, theirs)
        self.descriptors: list[int] = []

    def overwrite(self) -> None:
        for batch in self._ours.received():
            self.descriptors += batch.descriptors
        for descriptor in self.descriptors:
            with mmap.mmap(descriptor, os.fstat(descriptor).st_size) as chunk:
                chunk[:] = b"\xff" * len(chunk)


neighbour = Neighbour()
session = TorchMemory("cuda:0", CAPACITY)
torch.set_num_threads(1)


@contextmanager
def iteration(size: int = LANE) -> Iterator[None]:
    """One turn of one iteration; then the neighbour has the lane."""
    assert session.use_lane(neighbour.memory, size, CAPACITY) == ""
    session.begin()
    yield
    session.end()
    session.evacuate()
    assert _core.CudaLane.is_valid() == _core.CudaSegments.is_valid() == ""
    neighbour.overwrite()


def learn() -> None:
    """Run two iterations of 60 MiB outside of the lane, after which the demand is known."""
    memory(1)  # CUDA begins
    for _ in range(2):
        with iteration():
            assert not is_inside(memory(60))
    assert session.demand().ephemeral_bytes == 60 * MIB


def a_lane_may_grow_shrink_and_go() -> None:
    learn()
    for size in (LANE, 128 * MIB, 64 * MIB, LANE):
        with iteration(size):
            assert is_inside(memory(50))
    session.trim_lane(1, 32 * MIB)
    assert _core.CudaLane.attached_chunks() == 16
    with iteration():
        assert is_inside(memory(50))
    session.trim_lane(1, 0)
    assert _core.CudaLane.attached_chunks() == 0
    with iteration():
        assert is_inside(memory(50))
    session.release_lane()
    assert _core.CudaLane.attached_chunks() == 0
    assert session.use_lane(None, 0, CAPACITY) == ""
    session.begin()
    assert not is_inside(memory(50))
    session.end()
    session.evacuate()


def what_overflows_is_private_and_demanded() -> None:
    learn()
    session.demand()
    with iteration(64 * MIB):
        inside, outside = memory(60), memory(50)
        assert (is_inside(inside), is_inside(outside)) == (True, False)
        del inside, outside
    assert session.has_news
    assert session.demand().ephemeral_bytes >= 110 * MIB
    segments = _core.CudaSegments.bytes()
    with iteration(128 * MIB):
        both = [memory(60), memory(50)]
        assert all(map(is_inside, both))
        both.clear()
    assert _core.CudaSegments.bytes() <= segments


def holes_between_the_blocks_of_an_iteration_are_demanded_too() -> None:
    learn()
    for _ in range(3):
        with iteration():
            memory(60)  # now there is one segment of this size
    with iteration():
        both = [memory(40), memory(30)]
        assert all(map(is_inside, both))
        both.clear()
    assert session.demand().ephemeral_bytes >= 90 * MIB


def a_captured_graph_has_memory_of_its_own() -> None:
    learn()
    weights = memory(4, 7)
    graph = torch.cuda.CUDAGraph()
    with iteration(), torch.cuda.graph(graph):
        copy = weights.clone()
    assert not is_inside(copy)
    with iteration():
        assert is_inside(memory(50))
    weights.fill_(9)
    with iteration():
        graph.replay()
    assert is_all(copy, 9)


def what_a_captured_graph_uses_never_moves() -> None:
    """The graph persists since an iteration outside of the lane, whose memory is cleared after
    it."""
    memory(1)
    graph = torch.cuda.CUDAGraph()
    session.begin()
    weights = memory(30, 7)
    session.end()
    with torch.cuda.graph(graph):
        copy = weights.clone()
    session.begin()
    session.end()
    session.evacuate()
    weights.fill_(9)
    graph.replay()
    assert is_all(copy, 9)


def what_finds_no_room_to_move_keeps_its_place() -> None:
    """The GPU runs out of memory while survivors move."""
    learn()
    with iteration():
        kept = memory(20, 3)
        place = kept.data_ptr()
        torch.cuda.set_per_process_memory_fraction(1e-6)
    assert session.survivors() == 0
    assert kept.data_ptr() == place
    assert is_all(kept, 3)
    torch.cuda.set_per_process_memory_fraction(1.0)
    with iteration():
        assert is_inside(memory(50))


def a_process_whose_cuda_has_failed_gives_the_lane_up_as_it_is() -> None:
    learn()
    with iteration():
        memory(50)
    assert session.use_lane(neighbour.memory, LANE, CAPACITY) == ""
    session.begin()
    kept = memory(50)
    assert is_inside(kept)
    session.end()
    assert session.survivors() >= kept.nbytes
    break_cuda(kept.data_ptr() + 4 * LANE)  # addresses of the window that show nothing
    assert session.survivors() == 0
    session.evacuate()
    assert session.page_out(".")[0] == 0
    session.trim_lane(1, 0)
    session.begin()
    session.end()


def what_is_out_comes_back_as_soon_as_there_is_room() -> None:
    """Another process may still be releasing the room."""
    kept = memory(30, 3)
    size, _ = session.page_out("build")
    assert size >= 30 * MIB
    said: list[str] = []
    with no_room():
        assert "cannot be had again" in session.page_in()
        assert session.bytes_out() == size
        made = ctypes.CDLL("libcuda.so.1").fake_driver_calls
        before = made(b"cuMemCreate")
        thread = threading.Thread(target=lambda: said.append(session.page_in()))
        thread.start()
        while made(b"cuMemCreate") == before:
            time.sleep(0.01)
    thread.join()
    assert said == [""]
    assert session.bytes_out() == 0
    assert is_all(kept, 3)


def what_could_not_follow_leaves_out_what_cannot_come_back() -> None:
    """One call of the driver fails, sooner or later, when the GPU has no room any more."""
    kept = [memory(30, value) for value in range(4)]
    size, reason, nth = 0, "", 0
    while not 0 < size < _core.CudaSegments.bytes():
        assert session.page_in() == ""
        nth += 1
        with no_room():
            control("fail")(ctypes.c_size_t(nth), 999)
            size, reason = session.page_out("build")
        control("fail")(ctypes.c_size_t(0), 0)
    assert (size, reason) == (session.bytes_out(), "")
    assert session.page_in() == ""
    assert all(is_all(tensor, value) for value, tensor in enumerate(kept))


def a_look_at_a_pool_keeps_its_id() -> None:
    """The id of each pool is larger than that of the one before, and PyTorch's own look at it may
    release more references than it has taken."""
    memory(1)  # CUDA begins
    number = 10**9 + os.getpid()
    references = [number] * 100  # so that it is not freed
    before = sys.getrefcount(number)
    for _ in range(10):
        assert pools.segments(SimpleNamespace(id=(0, number))) == []
    assert sys.getrefcount(number) == before
    assert len(references) == 100


def break_cuda(hidden: int) -> None:
    """Break CUDA as a kernel that writes to an illegal address does: it fails from then on."""
    device = torch.device("cuda", 0)
    storage = torch._C._construct_storage_from_data_pointer(hidden, device, MIB)
    lost = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    try:
        lost.copy_(torch.empty(MIB, dtype=torch.uint8).pin_memory(), non_blocking=True)
        torch.cuda.synchronize()
    except RuntimeError:
        return
    raise AssertionError("CUDA has not failed")


if __name__ == "__main__":
    main(globals())
