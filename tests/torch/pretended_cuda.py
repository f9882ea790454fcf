"""The part of PyTorch's CUDA that a lane needs, for builds without it: `pretended_cuda.install()`.

It caches as PyTorch's allocator does, by the documented calls alone: pools that are routed for all
threads, segments that stay until their pool is gone and the cache is emptied, small ones of 2 MiB
and others of 20 MiB or whole multiples of 2 MiB, blocks cut from them. Memory is the fake
driver's, so it can be written and read. `Block` stands for the storage of a tensor.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MIB = 1 << 20
SMALL, LARGE = MIB, 10 * MIB
ROUND = 512
COUNTER = itertools.count(1)


class PluggableAllocator:
    """Its two functions, for the first GPU and the default stream."""

    def __init__(self, library: str, allocate: str, free: str) -> None:
        functions = ctypes.CDLL(library)
        self._allocate, self._free = getattr(functions, allocate), getattr(functions, free)
        self._allocate.restype = ctypes.c_void_p
        self._allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self) -> PluggableAllocator:
        return self

    def allocate(self, size: int) -> int:
        address: int | None = self._allocate(size, 0, None)
        if address is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return address

    def free(self, address: int, size: int) -> None:
        self._free(address, size, 0, None)


class Segment:
    def __init__(self, allocator: PluggableAllocator, size: int, is_small: bool) -> None:
        self._allocator = allocator
        self.address, self.size, self.is_small = allocator.allocate(size), size, is_small
        self.blocks: dict[int, int] = {}  # address -> size

    def place(self, size: int) -> int | None:
        """Return the first gap that is large enough."""
        begin = self.address
        for address, length in sorted(self.blocks.items()):
            if address - begin >= size:
                break
            begin = address + length
        return begin if self.address + self.size - begin >= size else None

    def end(self) -> None:
        self._allocator.free(self.address, self.size)


class Pool:
    """The segments of one allocator, with their blocks."""

    def __init__(self, allocator: PluggableAllocator) -> None:
        self.allocator, self.segments = allocator, list[Segment]()

    def take(self, size: int) -> tuple[Segment, int]:
        size = -(-size // ROUND) * ROUND
        is_small = size <= SMALL
        for segment in self.segments:
            if segment.is_small == is_small and (address := segment.place(size)) is not None:
                break
        else:
            segment = Segment(self.allocator, _segment_bytes(size), is_small)
            self.segments.append(segment)
            address = segment.address
        segment.blocks[address] = size
        return segment, address

    def end_idle(self) -> None:
        for segment in [segment for segment in self.segments if not segment.blocks]:
            segment.end()
            self.segments.remove(segment)

    def snapshot(self) -> list[dict[str, Any]]:
        return [{"blocks": list(_blocks(segment))} for segment in self.segments]


def _segment_bytes(size: int) -> int:
    if size <= SMALL:
        return 2 * MIB
    return 20 * MIB if size < LARGE else -(-size // (2 * MIB)) * 2 * MIB


def _blocks(segment: Segment) -> Any:
    begin = segment.address
    for address, size in sorted(segment.blocks.items()):
        if address > begin:
            yield {"address": begin, "size": address - begin, "state": "inactive"}
        yield {"address": address, "size": size, "state": "active_allocated"}
        begin = address + size
    if begin < segment.address + segment.size:
        size = segment.address + segment.size - begin
        yield {"address": begin, "size": size, "state": "inactive"}


class MemPool:
    """Where no allocator is named, segments come from the default one. A pool that is dropped ends
    those that are idle, and of the others each when what is alive in it dies."""

    def __init__(self, allocator: PluggableAllocator | None = None) -> None:
        assert cuda.default is not None
        self.id = (0, next(COUNTER))
        cuda.pools[self.id] = Pool(allocator or cuda.default.allocator)
        cuda.uses[self.id] = 1

    def __del__(self) -> None:
        cuda.release(0, self.id)
        cuda.pools[self.id].end_idle()


@contextmanager
def use_mem_pool(pool: MemPool, device: int) -> Iterator[None]:
    cuda.begin(0, pool.id)
    try:
        yield
    finally:
        cuda.end(0, pool.id)
        cuda.release(0, pool.id)


class Cuda:
    """PyTorch's state of one GPU."""

    def __init__(self) -> None:
        self.pools: dict[tuple[int, int], Pool] = {}
        self.uses: dict[tuple[int, int], int] = {}
        self.routed: list[tuple[int, int]] = []
        self.default: Pool | None = None
        self.is_capturing = False
        self.has_failed = False  # as after a failed assertion on the device
        self.synchronized = 0
        self.most = self.now = 0

    def pool(self) -> Pool:
        if self.routed:
            return self.pools[self.routed[-1]]
        assert self.default is not None
        return self.default

    def begin(self, index: int, pool: tuple[int, int]) -> None:
        assert pool not in self.routed, "already recording to mempool_id"
        self.routed.append(pool)
        self.uses[pool] += 1

    def end(self, index: int, pool: tuple[int, int]) -> None:
        self.routed.remove(pool)

    def release(self, index: int, pool: tuple[int, int]) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0
        assert pool not in self.routed or self.uses[pool] > 0

    def is_idle(self, index: int, pool: tuple[int, int], expected: set[int]) -> bool:
        return not any(segment.blocks for segment in self.pools[pool].segments)

    def check(self) -> None:
        if self.has_failed:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def empty_cache(self) -> None:
        self.check()
        assert self.default is not None
        for pool in [self.default, *(self.pools[id] for id in self.pools if not self.uses[id])]:
            pool.end_idle()

    def figures(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            "allocated_bytes": {"all": {"current": self.now, "peak": self.most}},
            "reserved_bytes": {"all": {"current": self.reserved()}},
        }

    def reserved(self) -> int:
        pools = [self.default, *self.pools.values()]
        return sum(segment.size for pool in pools if pool for segment in pool.segments)

    def count(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


class Block:
    """Memory of a tensor; it ends with this."""

    def __init__(self, size: int) -> None:
        self._segment, self.address = cuda.pool().take(size)
        self.size = size
        cuda.count(size)

    def fill(self, value: int) -> None:
        ctypes.memset(self.address, value, self.size)

    def is_full_of(self, value: int) -> bool:
        return ctypes.string_at(self.address, self.size) == bytes([value]) * self.size

    def __del__(self) -> None:
        del self._segment.blocks[self.address]
        cuda.count(-self.size)


cuda = Cuda()
_empty = torch.empty


def empty(*size: int, device: Any = None, **options: Any) -> Any:
    is_ours = device is not None and str(device).startswith("cuda")
    return Block(size[0]) if is_ours else _empty(*size, device=device, **options)


def reset_peak(index: int) -> None:
    cuda.most = cuda.now


def synchronize(index: int) -> None:
    cuda.check()
    cuda.synchronized += 1


def install(library: str) -> Cuda:
    """From now on torch has a GPU. Memory outside of pools comes from `library` as well."""
    cuda.default = Pool(PluggableAllocator(library, "gpushare_cuda_allocate", "gpushare_cuda_free"))
    ours = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_allocator_backend": lambda: "native",
        "is_current_stream_capturing": lambda: cuda.is_capturing,
        "memory_stats_as_nested_dict": lambda index: cuda.figures(),
        "reset_peak_memory_stats": reset_peak,
        "synchronize": synchronize,
        "memory_snapshot": lambda pool: cuda.pools[pool].snapshot(),
        "empty_cache": cuda.empty_cache,
        "MemPool": MemPool,
        "use_mem_pool": use_mem_pool,
    }
    private = {
        "_cuda_beginAllocateToPool": cuda.begin,
        "_cuda_endAllocateToPool": cuda.end,
        "_cuda_releasePool": cuda.release,
        "_cuda_checkPoolLiveAllocations": cuda.is_idle,
        "_cuda_customAllocator": None,
    }
    for place, functions in ((torch.cuda, ours), (torch._C, private)):
        for name, function in functions.items():
            setattr(place, name, function)
    torch.cuda.memory.CUDAPluggableAllocator = PluggableAllocator
    torch.cuda.memory._snapshot = lambda: {"allocator_settings": {}}
    torch.empty = empty
    return cuda
