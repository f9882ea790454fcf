"""Pools of PyTorch's caching allocator, on one GPU. Import this after torch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from . import exports
from .tensors import storage_of, tensors


def new(index: int, *allocator: Any) -> Any:
    """Return a pool of `cuda:index`: PyTorch makes one for the device that is current."""
    with torch.cuda.device(index):
        return torch.cuda.MemPool(*allocator)


def begin_routing(index: int, pool: Any) -> None:
    """From now on, all threads allocate from this pool; of several, from the last one."""
    torch._C._cuda_beginAllocateToPool(index, pool.id)


def end_routing(index: int, pool: Any) -> None:
    torch._C._cuda_endAllocateToPool(index, pool.id)
    torch._C._cuda_releasePool(index, pool.id)  # the reference of the beginning


def is_alive(index: int, pool: Any) -> bool:
    """Return whether any block of the pool is alive."""
    return not torch._C._cuda_checkPoolLiveAllocations(index, pool.id, set())


def empty_cache() -> None:
    """Give back the free segments of the default pool, and of pools that are given up."""
    with contextlib.suppress(RuntimeError):  # CUDA has failed: user code gets its own error
        torch.cuda.empty_cache()


def move_storages(is_to_move: Any) -> int:
    """Allocate storages that Python reaches anew, where allocations go now; return their number.
    Storages that another library uses as well stay.

    All views, gradients and tensors saved by autograd share the storage, so they move with it.
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
