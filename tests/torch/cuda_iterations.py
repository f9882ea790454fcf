"""Iterations on a GPU, each function in a process of its own: `cuda_iterations.py NAME`.

PyTorch's caching allocator is the pretended one, the driver the fake one; everything else is real.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from pretended_cuda import MIB, Block, install

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.memory import Memory
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.fd_channel import Channel

CAPACITY = 512 * MIB
LANE = 96 * MIB
cuda = install(_core.__file__)


class Broker:
    """Keeps the chunks of one lane, and is the neighbour that overwrites them."""

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


broker = Broker()
memory = Memory("cuda:0", CAPACITY)


@contextmanager
def iteration(size: int = LANE) -> Iterator[None]:
    """One turn of one iteration; then the lane is the neighbour's."""
    assert memory.use_lane(broker.memory, size, CAPACITY) == ""
    memory.begin()
    yield
    memory.end()
    memory.evacuate()
    assert _core.CudaLane.is_valid() == _core.CudaSegments.is_valid() == ""
    broker.overwrite()


def is_in_lane(block: Block) -> bool:
    return _core.CudaLane.owns(block.address)


def learn() -> None:
    """Return the demand: two iterations outside of the lane, that need 60 MiB."""
    for _ in range(2):
        with iteration():
            assert not is_in_lane(Block(60 * MIB))
    assert memory.demand().ephemeral_bytes == 60 * MIB


def block_of_a_thread(size: int) -> Block:
    """As a backward pass allocates."""
    found: list[Block] = []
    thread = threading.Thread(target=lambda: found.append(Block(size)))
    thread.start()
    thread.join()
    return found.pop()


def the_lane_has_what_lives_inside_iterations() -> None:
    weights = Block(30 * MIB)
    weights.fill(1)
    learn()
    for _ in range(5):
        with iteration():
            first, found = Block(40 * MIB), block_of_a_thread(15 * MIB)
            first.fill(2)
            found.fill(3)
            loss = Block(1000)
            loss.fill(4)
            assert is_in_lane(first)
            assert is_in_lane(found)
            assert not is_in_lane(loss)  # small ones survive
            assert first.is_full_of(2)
            assert found.is_full_of(3)
            del first, found
        assert not is_in_lane(Block(40 * MIB))
        assert weights.is_full_of(1)
        assert loss.is_full_of(4)
    assert memory.demand().persistent_bytes < 110 * MIB
    assert len(broker.descriptors) == LANE // (2 * MIB)


def what_survives_keeps_its_bytes() -> None:
    learn()
    kept = []
    for number in range(8):
        with iteration():
            before = Block(10 * MIB + 700)
            kept.append(Block(20 * MIB))
            kept[-1].fill(number)
            del before
            Block(10 * MIB).fill(99)
            assert is_in_lane(kept[-1])
            if len(kept) == 3:
                del kept[0]
        assert memory.survivors() == 0
        for block in kept:
            assert block.is_full_of(block_value(kept, block, number))
    kept.clear()
    for _ in range(2):
        with iteration():
            Block(60 * MIB).fill(5)


def block_value(kept: list[Block], block: Block, last: int) -> int:
    return last - (len(kept) - 1 - kept.index(block))


def a_lane_may_grow_shrink_and_go() -> None:
    learn()
    for size in (LANE, 128 * MIB, 64 * MIB, LANE):
        with iteration(size):
            assert is_in_lane(Block(50 * MIB))
    memory.trim_lane(1, 32 * MIB)
    assert _core.CudaLane.attached_chunks() == 16
    with iteration():
        assert is_in_lane(Block(50 * MIB))
    memory.trim_lane(1, 0)
    assert _core.CudaLane.attached_chunks() == 0
    assert memory.use_lane(None, 0, CAPACITY) == ""
    memory.begin()
    assert not is_in_lane(Block(50 * MIB))
    memory.end()
    memory.evacuate()


def what_overflows_is_private_and_demanded() -> None:
    learn()
    memory.demand()
    with iteration(64 * MIB):
        inside, outside = Block(60 * MIB), Block(50 * MIB)
        assert (is_in_lane(inside), is_in_lane(outside)) == (True, False)
        del inside, outside
    assert memory.has_news
    assert memory.demand().ephemeral_bytes >= 110 * MIB
    segments = _core.CudaSegments.bytes()
    with iteration(128 * MIB):
        both = [Block(60 * MIB), Block(50 * MIB)]
        assert all(map(is_in_lane, both))
        both.clear()
    assert _core.CudaSegments.bytes() <= segments


def holes_between_the_blocks_of_an_iteration_are_demanded_too() -> None:
    learn()
    for _ in range(3):
        with iteration():
            Block(60 * MIB)  # now there is one segment of this size
    with iteration():
        both = [Block(40 * MIB), Block(30 * MIB)]
        assert all(map(is_in_lane, both))
        both.clear()
    assert memory.demand().ephemeral_bytes >= 90 * MIB


def out_of_memory_is_an_error_of_the_user_s_code_alone() -> None:
    learn()
    with iteration():
        try:
            Block(2000 * MIB)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("there is not so much memory")
        assert is_in_lane(Block(50 * MIB))
    with iteration():
        assert is_in_lane(Block(50 * MIB))


def user_code_may_empty_the_cache() -> None:
    learn()
    for _ in range(3):
        with iteration():
            block = Block(50 * MIB)
            block.fill(7)
            torch.cuda.empty_cache()
            assert block.is_full_of(7)
            del block
        torch.cuda.empty_cache()


def graph_capture_is_left_alone() -> None:
    learn()
    cuda.is_capturing = True
    with iteration():
        assert not is_in_lane(Block(50 * MIB))
        assert cuda.routed == []
    cuda.is_capturing = False
    with iteration():
        assert is_in_lane(Block(50 * MIB))


def the_gpu_is_waited_for_before_the_lane_is_another_s() -> None:
    learn()
    with iteration():
        Block(50 * MIB)
        before = cuda.synchronized
    assert cuda.synchronized == before + 1


class NoRoom:
    """A storage in a block that PyTorch has no memory to allocate anew."""

    device = torch.device("cuda:0")
    _cdata = 1

    def __init__(self, block: Block) -> None:
        self.data_ptr = lambda: block.address
        self.nbytes = lambda: block.size

    def resizable(self) -> bool:
        return True

    def resize_(self, size: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Tensor(torch.Tensor):  # type: ignore[misc]
    storage: NoRoom

    def untyped_storage(self) -> NoRoom:
        return self.storage


def what_finds_no_room_to_move_keeps_its_place() -> None:
    learn()
    tensor = torch.ones(1).as_subclass(Tensor)
    with iteration():
        kept = Block(20 * MIB)
        kept.fill(3)
        tensor.storage = NoRoom(kept)
    assert memory.survivors() == 0
    assert kept.is_full_of(3)


def who_has_no_cuda_any_more_gives_the_lane_up_as_it_is() -> None:
    learn()
    with iteration():
        Block(50 * MIB)
    assert memory.use_lane(broker.memory, LANE, CAPACITY) == ""
    memory.begin()
    kept = Block(50 * MIB)
    assert is_in_lane(kept)
    memory.end()
    assert memory.survivors() >= kept.size
    cuda.has_failed = True
    assert memory.survivors() == 0
    memory.evacuate()
    assert memory.page_out(".")[0] == 0
    memory.trim_lane(1, 0)
    cuda.has_failed = False


def the_cuda_context_is_persistent() -> None:
    weights = Block(30 * MIB)
    with open(os.environ["FAKE_NVML"], "a") as nvml:
        nvml.write(f"process {os.getpid()} {100 * MIB}\n")
    learn()
    assert memory.demand().persistent_bytes == 100 * MIB
    assert memory.live() == weights.size + 70 * MIB


if __name__ == "__main__":
    globals()[sys.argv[1]]()
