"""Pools of PyTorch's caching allocator, on one GPU. Import this after torch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from .... import _core
from . import exports
from .tensors import storage_of, tensors, without_subclasses


def new(index: int, *allocator: Any) -> Any:
    """Return a pool of `cuda:index`: PyTorch makes one for the device that is current."""
    with torch.cuda.device(index):
        return torch.cuda.MemPool(*allocator)


def begin_routing(index: int, pool: Any) -> None:
    """Let all threads allocate from this pool; among several, the last one counts."""
    torch._C._cuda_beginAllocateToPool(index, pool.id)


def end_routing(index: int, pool: Any) -> None:
    torch._C._cuda_endAllocateToPool(index, pool.id)
    torch._C._cuda_releasePool(index, pool.id)  # releases the reference that `begin_routing` took


def is_alive(index: int, pool: Any) -> bool:
    """Return whether any block of the pool is alive."""
    return not torch._C._cuda_checkPoolLiveAllocations(index, pool.id, set())


def empty_cache() -> None:
    """Give back the free segments of the default pool, and of pools that are given up."""
    with contextlib.suppress(RuntimeError):  # CUDA has failed: user code gets its own error
        torch.cuda.empty_cache()


def segments(pool: Any) -> list[Any]:
    """Return the segments of the pool, as PyTorch's snapshot has them.

    The snapshot may release references to the id of the pool that it does not own
    (issue 196366 of PyTorch), so that the id is freed while in use. So they are added before.
    """
    id = pool.id
    if _releases_references():
        for number in id:
            _add_reference(number)
    found: list[Any] = torch.cuda.memory_snapshot(id)
    return found


@functools.cache
def _releases_references() -> bool:
    """Whether a snapshot releases a reference to each number of a pool's id. The look uses an id of
    no pool, which has no segments."""
    number = int("1" + "0" * 9)  # small numbers and constants are shared
    for _ in range(2):
        _add_reference(number)
    before = sys.getrefcount(number)
    torch.cuda.memory_snapshot((number, number))
    return sys.getrefcount(number) < before


def _add_reference(number: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))


def move_storages(
    is_to_move: Callable[[int], bool], is_done: Callable[[], bool] = lambda: False
) -> bool:
    """Allocate storages that Python reaches again, where allocations go now, until `is_done`.
    Storages that another library uses, too, stay where they are. Return False if other storages
    stay as well, since another thread may be computing.

    All views, gradients and tensors saved by autograd share the storage, so they move with it. Most
    of the objects that an iteration has made are young, and young ones are tried first: a look at
    all objects takes tens of milliseconds.
    """
    moved: set[int] = set()  # one may come to the address of another that has moved
    with without_subclasses():
        for generation in (0, 1, None):
            found = {
                storage._cdata: storage
                for tensor in tensors(torch.Tensor, generation=generation)
                if (storage := storage_of(tensor)) is not None
                and storage._cdata not in moved
                and is_to_move(storage.data_ptr())
                and not exports.is_exported(storage)
            }
            if found and not _core.CudaLane.renew(list(found.values())):
                return False
            moved |= found.keys()
            if is_done():
                break
    return True
