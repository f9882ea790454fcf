"""The lane of this process on a GPU, behind PyTorch's own caching allocator.

While an iteration runs, every thread's tensors come from a pool of the caching allocator whose
segments are the lane's (csrc/memory). Its segments stay between iterations, so a boundary where
nothing of the pool is alive changes nothing. What is alive there moves out: storages that Python
reaches are allocated anew, and of all others the pages become private.

It is not in use yet: no part of it that needs a GPU has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _core
from .torch_memory import WINDOW_OF_CAPACITY, _tensors

LEAST_SEED = 20 << 20  # bytes; of what is smaller PyTorch makes a segment of so many
INACTIVE = "inactive"  # as the caching allocator calls a block that nobody has
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

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    if torch.cuda.get_allocator_backend() != "native":
        return "PyTorch's own caching allocator is not in use"
    missing = [name for name in NEEDED if not hasattr(torch._C, name)]
    return f"this build of PyTorch has no {missing[0]}" if missing else ""


class CudaLane:
    """This process's part of a lane of `cuda:index`; `is_open` while iterations may use it."""

    def __init__(self, index: int) -> None:
        import torch

        self.is_open = False
        self.trouble = ""  # why there is a lane that is not used, in a sentence
        self._torch = torch
        self._index = index
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, "gpushare_cuda_allocate", "gpushare_cuda_free"
        )
        self._pool: Any = None
        self._seed = 0  # bytes
        self._inside = False

    def use(self, descriptors: Sequence[int], size: int, capacity: int, ephemeral: int) -> None:
        """The memory of the next iterations, which need about `ephemeral` bytes of it."""
        if self.is_open and self.survivors():
            return  # it stays as it is: what is alive in it would have to go
        self.is_open = False
        self._pool = None
        if descriptors and size > 0:
            self.trouble = _open(self._index, capacity) or _core.CudaLane.attach(
                list(descriptors), size
            )
            self.is_open = not self.trouble
            self._seed = min(ephemeral, size)

    def enter(self) -> None:
        if not self.is_open or self._torch.cuda.is_current_stream_capturing():
            return
        self._inside = True
        is_new = self._pool is None
        if is_new:
            self._pool = self._torch.cuda.MemPool(self._allocator.allocator())
        _core.CudaLane.enter()
        self._torch._C._cuda_beginAllocateToPool(self._index, self._pool.id)
        if is_new:
            self._sow()

    def leave(self) -> tuple[int, bool]:
        """Bytes that this iteration would have taken of the lane, and whether it has so many."""
        if not self._inside:
            return 0, True
        self._inside = False
        self._torch._C._cuda_endAllocateToPool(self._index, self._pool.id)
        self._torch._C._cuda_releasePool(self._index, self._pool.id)  # what `begin` had counted
        _core.CudaLane.leave()
        usage = _core.CudaLane.usage()
        return usage.footprint + usage.overflow_bytes, usage.overflow_bytes == 0

    def survivors(self) -> int:
        """Bytes that are alive in the lane. A walk through all that PyTorch has, if there are any.

        What a stream of the GPU has still to do with freed memory counts as well.
        """
        return _core.CudaLane.trimmed() + sum(size for _, size in self._living())

    def promote(self) -> None:
        """Empty the lane of all that is alive; the GPU must have done our work."""
        if not self.survivors():
            return
        move_storages(self._torch, _core.CudaLane.owns)
        if self.survivors():
            self._retire()
            _core.CudaLane.promote()

    def _sow(self) -> None:
        """One large segment, which PyTorch cuts to size: many small ones leave more holes.

        Survivors may lie in between; what did not fit would be made elsewhere.
        """
        size = min(self._seed, _core.CudaLane.room())
        if size >= LEAST_SEED:
            self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._index}")

    def _living(self) -> list[tuple[int, int]]:
        """What is alive in the pool; the walk ends at once where nothing is."""
        check = self._torch._C._cuda_checkPoolLiveAllocations
        if self._pool is None or check(self._index, self._pool.id, set()):
            return []
        return living(self._pool.snapshot(include_traces=False))

    def _retire(self) -> None:
        """The pool takes and gives nothing more. Of its segments, only those with something alive
        in them stay, until that dies."""
        alive = self._living()
        self._pool = None
        _core.CudaLane.trim(alive)


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

    All views, gradients and what autograd has saved share the storage, so they follow.
    """
    moved: set[int] = set()
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in _tensors(torch.Tensor):
            storage = _storage(tensor)
            if storage is None or storage._cdata in moved or not is_to_move(storage.data_ptr()):
                continue
            storage.resize_(storage.nbytes())
            moved.add(storage._cdata)
    return len(moved)


def _storage(tensor: Any) -> Any:
    """Its storage; None where it has no memory of its own: fake, sparse and wrapper tensors."""
    try:
        storage = tensor.untyped_storage()
        has_memory = storage.device.type != "meta" and storage.resizable() and storage.data_ptr()
        return storage if has_memory else None
    except Exception:
        return None


def _open(index: int, capacity: int) -> str:
    """Addresses for lanes of up to `capacity` bytes, once per process; empty, or why not."""
    if not _window:
        _window.append(_core.CudaLane.open(index, WINDOW_OF_CAPACITY * capacity))
    return _window[0]


_window: list[str] = []  # what opening it said
