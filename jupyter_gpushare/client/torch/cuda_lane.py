"""The lane of this process on a GPU, behind PyTorch's own caching allocator.

While an iteration runs, every thread's tensors come from a pool of the caching allocator whose
segments are the lane's (csrc/memory). Its segments stay between iterations, so a boundary where
nothing of the pool is alive changes nothing. What is alive there moves out: storages that Python
reaches are allocated anew, and of all others the pages become private.

A segment that the lane had no room for is private, and PyTorch would keep it for the next
iteration and prefer it to the lane's. So after an iteration that overflowed the pool is another.

It has run under PyTorch's own allocator on a driver that stands in for the real one (tests/cuda),
and on no GPU so far.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ... import _core
from ..cuda_chunks import CudaLane
from . import exports
from .tensors import storage_of, tensors

if TYPE_CHECKING:
    from ...wire.client import LaneMemory

LEAST_SEED = 20 << 20  # bytes; PyTorch makes a segment of that size of what is smaller
TIDY = 8  # times that the cache is emptied after an iteration outside; what lives on pins segments
INACTIVE = "inactive"  # as the caching allocator calls a block that is free
OLDEST = (2, 9)  # version of PyTorch; older ones were not read
NEEDED = (  # of PyTorch's own functions; there is no public way to route all threads
    "_cuda_beginAllocateToPool",
    "_cuda_endAllocateToPool",
    "_cuda_releasePool",
    "_cuda_checkPoolLiveAllocations",
    "_cuda_customAllocator",
)


def why_not() -> str:
    """Empty if this build of PyTorch can have a lane on a GPU; otherwise the reason."""
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        return f"PyTorch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    if torch.cuda.get_allocator_backend() != "native":
        return "PyTorch's own caching allocator is not in use"
    missing = [name for name in NEEDED if not hasattr(torch._C, name)]
    return f"this build of PyTorch has no {missing[0]}" if missing else ""


class PooledLane:
    """This process's part of a lane of `cuda:index`; `is_open` while iterations may use it.

    Where this build of PyTorch cannot have one, it never is; then PyTorch gives the memory that it
    caches back at each turn's end.
    """

    moves_aside = False  # what a kernel of the GPU uses meanwhile would be lost

    def __init__(self, index: int, capacity: int) -> None:
        import torch

        self.is_open = False
        self.inside = False
        self._torch = torch
        self._index = index
        self._pool: Any = None
        self._offered: tuple[LaneMemory, int] | None = None
        self._seed = self._sown = 0  # bytes
        self._is_sowing = True
        self._to_tidy = 0  # times still that PyTorch is to give back what iterations outside left
        self._is_crowded = False  # the last iteration overflowed
        self._kept: Any = None  # the pool of what has moved out of the lane
        self._why_not = why_not()
        if not self._why_not:
            exports.watch()
            largest = allocator_settings().get("max_split_size", -1)
            self._largest_to_split = capacity if largest < 0 else largest
            self._lane = CudaLane(index, capacity)
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                _core.__file__, "gpushare_cuda_allocate", "gpushare_cuda_free"
            )

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        """The memory of the next iterations, which need about `needed` bytes of it. As long as
        what they need is not known, it is only noted.

        Empty, or the sentence that says why they do without.
        """
        if self._why_not:
            return self._why_not
        if self.inside or (self.is_open and not self._is_cleared_for(memory, size)):
            return ""  # it stays as it is
        if memory is None or not size:
            self.is_open, self._offered = False, None
            return ""
        if not (wanted := needed()):
            self._offered = memory, size
            return ""
        return self._attach(memory, size, wanted)

    def _is_cleared_for(self, memory: LaneMemory | None, size: int) -> bool:
        """Whether nothing is alive in the lane; where it is another one from now on, that moves."""
        if memory is not None and self._lane.is_using(memory, size):
            return not self.survivors()
        return self._is_cleared()

    def _is_cleared(self) -> bool:
        """Whether nothing is alive in the lane, once the GPU has done our work and what survived
        has moved out. There may be no room for that."""
        if self.survivors():
            with contextlib.suppress(MemoryError, RuntimeError):  # CUDA may have failed as well
                self._torch.cuda.synchronize(self._index)
                self._promote()
        return not self.survivors()

    def _attach(self, memory: LaneMemory, size: int, needed: int) -> str:
        self._offered = None
        self._seed = min(needed, size)
        if not self._lane.is_using(memory, size):
            self._drop_pool()
            self._is_sowing = True
        trouble = self._lane.use(memory, size)
        self.is_open = not trouble
        return trouble

    def trim(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size`."""
        if self._why_not or self._lane.memory is None or self._lane.memory.number != number:
            return
        if self.inside or self.survivors():
            return  # what is in use stays; a larger lane than others have costs memory alone
        self.is_open = False  # until the next turn says how much there is of it
        self._drop_pool()
        self._lane.trim(size)

    def enter(self, needed: Callable[[], int]) -> None:
        if self._offered is not None:
            self._attach(*self._offered, needed())  # the next turn tells of trouble
        if not self.is_open or not self._may_route():
            self.stay_out()
            return
        self._tidy()
        if self._is_crowded:
            self._is_crowded = not self._is_cleared()
        self.inside = True
        is_new = self._pool is None
        if is_new:
            self._pool = self._torch.cuda.MemPool(self._allocator.allocator())
        _core.CudaLane.enter()
        self._torch._C._cuda_beginAllocateToPool(self._index, self._pool.id)
        if is_new:
            self._sow()

    def _may_route(self) -> bool:
        """Not in a process that has not used the GPU yet, nor while a graph is captured, which has
        memory of its own."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and not cuda.is_current_stream_capturing())

    def stay_out(self) -> None:
        """The iteration that begins has no part in the lane."""
        self._to_tidy = TIDY

    def leave(self) -> tuple[int, bool]:
        """Bytes that this iteration would have taken of the lane, and whether it has that many.

        What one segment was made for in advance says nothing of what the iteration needed.
        """
        if not self.inside:
            return 0, True
        self.inside = False
        self._torch._C._cuda_endAllocateToPool(self._index, self._pool.id)
        self._torch._C._cuda_releasePool(self._index, self._pool.id)  # what `begin` had counted
        _core.CudaLane.leave()
        usage = _core.CudaLane.usage()
        taken = usage.footprint if usage.footprint > self._sown else 0
        if not usage.overflow_bytes:
            return taken, True
        survivors = self.survivors()
        taken = max(taken, survivors)  # beside what lives on, the next one needs as much
        self._is_sowing = self._is_sowing and bool(survivors)
        self._is_crowded = True
        self._retire()
        return taken + usage.overflow_bytes, False

    def survivors(self) -> int:
        """Bytes that are alive in the lane. A walk through all that PyTorch has, if there are any.

        What a stream of the GPU has still to do with freed memory counts as well.
        """
        return _core.CudaLane.trimmed() + sum(size for _, size in self._living())

    def evacuate(self) -> None:
        """The lane has nothing of this process, and PyTorch keeps nothing that iterations had
        outside of it. The GPU must have done this process's work."""
        self._tidy()
        if self.survivors():
            self._promote()

    def _tidy(self) -> None:
        """PyTorch gives back what it keeps of iterations outside, and of what had moved out of the
        lane; before anything moves, which could find its place in there and pin it."""
        if self._to_tidy:
            self._to_tidy -= 1
            self._empty_cache()
        if self._kept is not None and not self._is_alive(self._kept):
            self._kept = None

    def _promote(self) -> None:
        if self._kept is None:
            self._kept = self._torch.cuda.MemPool()
        with (
            contextlib.suppress(self._torch.OutOfMemoryError),  # then its pages become private
            self._torch.cuda.use_mem_pool(self._kept, self._index),
        ):
            move_storages(self._torch, _core.CudaLane.owns)
        if self.survivors():
            self._retire()
            _core.CudaLane.promote()

    def _drop_pool(self) -> None:
        """Its segments end, since nothing is alive in them."""
        if self._pool is not None:
            self._pool = None
            self._empty_cache()

    def _empty_cache(self) -> None:
        with contextlib.suppress(RuntimeError):  # CUDA has failed: user code is told by itself
            self._torch.cuda.empty_cache()

    def _sow(self) -> None:
        """One large segment, which PyTorch cuts to size: many small ones leave more holes. What is
        too large for PyTorch to cut, as the user has set it, would serve nobody. It serves one
        stream alone, so after an overflow there is none, unless survivors were in the way.

        Survivors may lie in between; what did not fit would be made elsewhere.
        """
        size = min(self._seed, _core.CudaLane.room()) if self._is_sowing else 0
        self._sown = size if LEAST_SEED <= size <= self._largest_to_split else 0
        if self._sown:
            self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._index}")

    def _living(self) -> list[tuple[int, int]]:
        """What is alive in the pool; the walk ends at once where nothing is."""
        if self._pool is None or not self._is_alive(self._pool):
            return []
        return living(self._torch.cuda.memory_snapshot(self._pool.id))

    def _is_alive(self, pool: Any) -> bool:
        """Whether anything of it is."""
        check = self._torch._C._cuda_checkPoolLiveAllocations
        return not check(self._index, pool.id, set())

    def _retire(self) -> None:
        """The pool takes and gives nothing more. Of its segments, only those with something alive
        in them stay, until that dies."""
        alive = self._living()
        self._pool = None
        _core.CudaLane.trim(alive)


def why_not_paged() -> str:
    """Empty if PyTorch's segments can be paged out; otherwise the reason."""
    if allocator_settings().get("expandable_segments"):
        return "PyTorch's expandable segments are on, and they are no memory that can be moved"
    return ""


def private_bytes() -> int:
    """Bytes of segments of this process's own, and of pages that were promoted out of its lane."""
    return _core.CudaSegments.bytes() + _core.CudaLane.usage().living_promoted_bytes


def allocator_settings() -> dict[str, Any]:
    """What the user has set of PyTorch's caching allocator, by the names that PyTorch reports."""
    import torch

    settings: dict[str, Any] = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return settings


def living(segments: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Addresses and sizes of what is alive in segments of a snapshot, by address."""
    return sorted(
        (block["address"], block["size"])
        for segment in segments
        for block in segment["blocks"]
        if block["state"] != INACTIVE and _core.CudaLane.owns(block["address"])
    )


def move_storages(torch: Any, is_to_move: Any) -> int:
    """Allocate storages that Python reaches anew, where allocations go now; how many there were.
    Those that another library has as well stay.

    All views, gradients and what autograd has saved share the storage, so they follow.
    """
    moved: set[int] = set()
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors(torch.Tensor):
            storage = storage_of(tensor)
            if storage is None or storage._cdata in moved or exports.is_exported(storage):
                continue
            if not is_to_move(storage.data_ptr()):
                continue
            storage.resize_(storage.nbytes())
            moved.add(storage._cdata)
    return len(moved)
