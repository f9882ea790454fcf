"""The lane of this process on a GPU, behind PyTorch's own caching allocator.

While an iteration runs, every thread's tensors come from a pool of the caching allocator whose
segments lie in the lane (csrc/memory). Its segments stay between iterations, so a boundary at which
nothing of the pool is alive changes nothing. Survivors move out: storages that Python reaches are
allocated again, and the pages of all others become private.

A segment for which the lane had no room is private, and PyTorch would keep it for the next
iteration and prefer it to the lane's. So an iteration that overflowed is followed by a new pool.

This module has run under PyTorch's own allocator on a driver that replaces the real one
(tests/system/cuda), and on one card (docs/results/gpu.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .... import _core
from .. import unpublished
from ..storages import exports, outgoing, pools
from ..storages.peaks import peaks_of
from .apart import Apart
from .cuda_chunks import CudaLane
from .seed import Seed

if TYPE_CHECKING:
    from ....wire.client import LaneMemory
    from ....wire.demand import Curve

LEAST_SEED = 20 << 20  # bytes; for a smaller request PyTorch makes a segment of that size
TIDY = 8  # times to empty the cache after an iteration outside; live blocks pin segments
INACTIVE = "inactive"  # the caching allocator's state of a free block
OLDEST = (2, 11)  # version of PyTorch; tests/system/cuda has run it and newer ones, and none before


def why_not() -> str:
    """Return an empty string if this build of PyTorch can have a lane on a GPU; else the reason."""
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        return f"PyTorch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    if torch.cuda.get_allocator_backend() != "native":
        return "PyTorch's own caching allocator is not in use"
    return unpublished.lacks(unpublished.LANES_OF_GPUS + unpublished.SETTINGS_OF_GPUS)


class PooledLane:
    """This process's part of a lane of `cuda:index`; `is_open` while iterations may use it.

    If this build of PyTorch cannot have a lane, it is never open; then PyTorch gives its cached
    memory back at the end of each turn.
    """

    seconds_to_move = 0.007  # looks at other threads and at what is alive, new segments, and copies

    def __init__(self, index: int, capacity: int) -> None:
        import torch

        self.is_open = False
        self.inside = False
        self.learns = False
        self._torch = torch
        self._index = index
        self._pool: Any = None
        self._offered: tuple[LaneMemory, int] | None = None
        self._to_trim: tuple[int, int] | None = None  # the number of a memory, and its bytes
        self._needed = 0  # bytes that an iteration needs, by those outside of the lane
        self._seed = Seed(LEAST_SEED)
        self._wanted = self._sown = 0  # bytes of the one segment
        self._stream = 0  # the one of iterations, as a number
        self._to_tidy = 0  # how often PyTorch still has to give back memory of iterations outside
        self._overflowed = False  # the last iteration overflowed
        self._kept: Any = None  # the pool of storages that moved out of the lane
        self._apart: Apart | None = None
        self._peaks = peaks_of(index)
        self._beside = 0  # bytes of large tensors outside of the lane, when the iteration began
        self._why_not = why_not()
        if not self._why_not:
            self._apart = Apart(index)
            exports.watch()
            outgoing.watch()
            largest = allocator_settings().get("max_split_size", -1)
            self._largest_to_split = capacity if largest < 0 else largest
            self._lane = CudaLane(index, capacity)
            self._seed = Seed(self._lane.chunk_bytes)
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                _core.__file__, "gpushare_cuda_allocate", "gpushare_cuda_free"
            )

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        """Set the memory of the next iterations, which need about `needed` bytes of it. While
        `needed` is unknown, the memory is only noted.

        Return an empty string, or the sentence that says why they run without a lane.
        """
        if self._why_not:
            return self._why_not
        if self.inside or (self.is_open and not self._is_cleared_for(memory, size)):
            return ""  # the lane stays as it is
        if memory is None or not size:
            self.is_open, self._offered = False, None
            return ""
        if not (wanted := needed()):
            self._offered = memory, size
            return ""
        return self._attach(memory, size, wanted)

    def _is_cleared_for(self, memory: LaneMemory | None, size: int) -> bool:
        """Return whether nothing is alive in the lane. If the lane is a new one, survivors move out
        first."""
        if memory is not None and self._lane.is_using(memory, size):
            return not self.survivors()
        return self._is_cleared()

    def _is_cleared(self) -> bool:
        """Move survivors out; return whether nothing is alive in the lane. There may be no room for
        them, or another thread may be computing with them."""
        if self.survivors():
            with contextlib.suppress(MemoryError, RuntimeError):  # CUDA may have failed as well
                self._promote()
        return not self.survivors()

    def _attach(self, memory: LaneMemory, size: int, needed: int) -> str:
        self._offered = None
        self._needed = needed
        if size < self._seed.enough:
            self._seed.forget()
        if not self._lane.is_using(memory, size):
            self._drop_pool()
        self._to_trim = None  # this size is newer
        trouble = self._lane.use(memory, size)
        self.is_open = not trouble
        return trouble

    def trim(self, number: int, size: int) -> None:
        """Release the part above `size` bytes of the memory with that number."""
        if self._why_not or self._lane.memory is None or self._lane.memory.number != number:
            return
        self._to_trim = number, size
        if not self.inside:
            self._trim()

    def release(self) -> None:
        """Release all of the memory for good, as soon as that has no tensors."""
        self._offered = None
        if not self._why_not and self._lane.memory is not None:
            self.trim(self._lane.memory.number, 0)

    def _trim(self) -> None:
        """Release the part to be trimmed, as soon as it has no tensors. Until then a lane that is
        larger than in other processes only costs memory."""
        number, size = self._to_trim or (0, 0)
        if not self._to_trim or self._lane.memory is None or self._lane.memory.number != number:
            self._to_trim = None
            return
        if size < self._lane.size:
            if self.survivors():
                return
            self.is_open = False  # until the next turn gives its size
            self._drop_pool()
        self._to_trim = None
        self._lane.trim(size)

    def enter(self, needed: Callable[[], int]) -> None:
        if self._offered is not None:
            self._attach(*self._offered, needed())  # the next turn reports trouble
        if not self.is_open or not self._may_route():
            self.stay_out()
            return
        if self._apart is not None:
            self._apart.settle()
        self._tidy()
        if self._to_trim is not None and self._to_trim[1] >= self._lane.size:
            self._trim()
        if self._overflowed:
            self._overflowed = not self._is_cleared()
        if self._pool is not None and self._size_to_sow() != self._wanted and self._is_cleared():
            self._drop_pool()
        self.inside = True
        self._beside = self._large("current") - sum(size for _, size in self._living())
        is_new = self._pool is None
        if is_new:
            self._pool = pools.new(self._index, self._allocator.allocator())
        _core.CudaLane.enter()
        pools.begin_routing(self._index, self._pool)
        if is_new:
            with self._peaks.unseen():
                self._sow()

    def _large(self, kind: str) -> int:
        """Return the `current` or the `peak` bytes of tensors that lie in large segments."""
        return int(self._peaks.figures()["allocated_bytes"]["large_pool"][kind])

    def _may_route(self) -> bool:
        """Whether allocations may go to the lane: the process has used the GPU, which has not
        failed, and captures no graph, since a graph has memory of its own."""
        cuda = self._torch.cuda
        with contextlib.suppress(RuntimeError):  # CUDA has failed: user code gets its own error
            return bool(cuda.is_initialized() and not cuda.is_current_stream_capturing())
        return False

    def stay_out(self) -> None:
        """Begin an iteration that does not use the lane."""
        self._to_tidy = TIDY
        if self._apart is None:
            return
        if self._may_route():
            self._apart.begin()
        elif not self._torch.cuda.is_initialized():
            self._apart.begin_without_cuda()

    def leave(self) -> tuple[int, bool]:
        """Leave the lane. Return the bytes that this iteration would have taken of it, and whether
        they fit. PyTorch's present peak must be that of the iteration."""
        if self._apart is not None:
            self._apart.end()
        if not self.inside:
            return 0, True
        self.inside = False
        pools.end_routing(self._index, self._pool)
        _core.CudaLane.leave()
        left = self._account()
        if self._to_trim is not None and not self._to_trim[1]:  # no iteration may come after this
            self._trim()
        return left

    def _account(self) -> tuple[int, bool]:
        usage = _core.CudaLane.usage()
        known = self._seed.enough
        taken = self._whole_chunks(self._taken(usage.footprint + usage.overflow_bytes))
        self.learns = self._seed.enough != known or self._size_to_sow() != self._wanted
        if not usage.overflow_bytes:
            return taken, True
        self._overflowed = True
        self._retire()
        return taken, taken <= self._lane.size

    def _taken(self, all: int) -> int:
        """Return how much of the lane an iteration needs if its segments have `all` bytes."""
        in_use = max(0, self._large("peak") - self._beside)
        beside = self._beside_the_stream() if all > self._sown else 0
        return self._seed.ended(self._sown, in_use, all - beside, beside)

    def _beside_the_stream(self) -> int:
        """Return the bytes of the lane that segments of other streams take."""
        return sum(
            self._whole_chunks(segment["total_size"])
            for segment in pools.segments(self._pool)
            if segment["stream"] != self._stream and segment["segment_type"] == "large"
        )

    def _whole_chunks(self, size: int) -> int:
        chunk = self._lane.chunk_bytes
        return -(-size // chunk) * chunk

    def curve(self) -> Curve | None:
        """Return None: PyTorch's allocator keeps its segments until an iteration ends."""
        return None

    def survivors(self) -> int:
        """Return the bytes that are alive in the lane; if there are any, this walks all segments.

        Freed memory that a stream of the GPU still uses counts as well.
        """
        return _core.CudaLane.trimmed() + sum(size for _, size in self._living())

    def may_move(self) -> bool:
        return _core.others_wait()  # what a GPU kernel writes meanwhile would be lost

    def evacuate(self) -> None:
        """Empty the lane, and let PyTorch give back its cached memory of iterations outside of it.
        The GPU must have finished the work of this process."""
        if self._apart is not None:
            self._apart.pack()
        self._tidy()
        if self.survivors():
            self._promote()
        self._trim()

    def _tidy(self) -> None:
        """Let PyTorch give back its cached memory of iterations outside of the lane, and of
        storages that moved out of it. This comes before storages move, which could otherwise pin
        that memory."""
        if self._to_tidy:
            self._to_tidy -= 1
            pools.empty_cache()
        if self._kept is not None and not pools.is_alive(self._index, self._kept):
            self._kept = None

    def _promote(self) -> None:
        """Move survivors out of the lane, unless another thread may be computing with them."""
        is_new = self._kept is None
        if is_new:
            self._kept = pools.new(self._index)
        with (
            contextlib.suppress(self._torch.OutOfMemoryError),  # then the pages become private
            self._torch.cuda.use_mem_pool(self._kept, self._index),
            self._peaks.unseen(),
        ):
            if is_new and LEAST_SEED <= (size := self.survivors()) <= self._largest_to_split:
                self._segment(size)  # many small ones take longer than the copies
            if not pools.move_storages(_core.CudaLane.owns, lambda: not self.survivors()):
                return
        if self.survivors():
            self._retire()
            _core.CudaLane.promote()

    def _drop_pool(self) -> None:
        """Drop the pool; its segments are freed, since nothing is alive in them."""
        if self._pool is not None:
            self._pool = None
            pools.empty_cache()

    def _size_to_sow(self) -> int:
        """Return the bytes of the one segment; 0 if there is none, since a segment above the user's
        limit for splits would serve no allocation."""
        size = min(self._seed.next(self._needed), self._lane.size)
        return size if LEAST_SEED <= size <= self._largest_to_split else 0

    def _sow(self) -> None:
        """Make one large segment, which PyTorch splits: many small ones leave more holes. It serves
        one stream only.

        Survivors may lie in between; a segment that does not fit would lie outside of the lane.
        """
        self._wanted = self._size_to_sow()
        size = min(self._wanted, _core.CudaLane.room())
        self._sown = size if size >= LEAST_SEED else 0
        self._stream = self._torch.cuda.current_stream(self._index).cuda_stream
        if self._sown:
            self._segment(size)

    def _segment(self, size: int) -> None:
        """Make a segment of `size` bytes in the pool in use, which stays without tensors."""
        self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._index}")

    def _living(self) -> list[tuple[int, int]]:
        """Return addresses and sizes of what is alive in the pool, without a walk if nothing is."""
        pool = self._pool  # a message that another thread takes may end its use
        if pool is None or not pools.is_alive(self._index, pool):
            return []
        return living(pools.segments(pool))

    def _retire(self) -> None:
        """End the use of the pool. Its segments with live blocks stay until these are freed."""
        alive = self._living()
        self._pool = None
        _core.CudaLane.trim(alive)
        pools.empty_cache()


def why_not_paged() -> str:
    """Return an empty string if PyTorch's segments can be paged out; else the reason."""
    if reason := unpublished.lacks(unpublished.SETTINGS_OF_GPUS):
        return reason
    if allocator_settings().get("expandable_segments"):
        return "PyTorch's expandable segments are on, and they are no memory that can be moved"
    return ""


def private_bytes(reserved: int) -> int:
    """Return the bytes of the GPU that this process has beside its lane, if its allocator has
    `reserved` bytes of segments. These count, including those from before sharing was on, without
    the segments in the lane; and so do the pages that were promoted out of the lane."""
    promoted = int(_core.CudaLane.usage().living_promoted_bytes)
    return reserved - int(_core.CudaLane.segment_bytes()) + promoted


def allocator_settings() -> dict[str, Any]:
    """Return the settings of PyTorch's caching allocator, by the names that PyTorch reports."""
    import torch

    settings: dict[str, Any] = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return settings


def living(segments: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return addresses and sizes of the live blocks in segments of a snapshot, sorted by
    address."""
    return sorted(
        (block["address"], block["size"])
        for segment in segments
        for block in segment["blocks"]
        if block["state"] != INACTIVE and _core.CudaLane.owns(block["address"])
    )
