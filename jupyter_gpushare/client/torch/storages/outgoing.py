"""Tensors of a GPU that go to another process, by torch.multiprocessing.

The CUDA runtime shares only memory that it has made itself, and the driver makes a session's
segments. So a storage first moves to a pool whose segments the runtime makes; views, gradients and
tensors saved by autograd share the storage, so they move with it. Such memory is persistent, and is
not paged out, since the other process uses it.
"""

from __future__ import annotations

import functools
from typing import Any

from .... import _core
from . import exports, pools

IS_EXPORTED = (
    "this tensor cannot be sent to another process: another library has its address, by DLPack or"
    " __cuda_array_interface__, and sharing memory of a session gives it a new one. Send"
    " tensor.clone() instead"
)


def watch() -> None:
    """Move each storage that goes to another process from now on, if it lies in a session's
    memory. Idempotent."""
    import torch

    share = torch.UntypedStorage._share_cuda_
    if hasattr(share, "__wrapped__"):
        return
    pool = functools.cache(lambda index: _pool_of_runtime(torch, index))

    @functools.wraps(share)
    def shared(storage: Any, *arguments: Any, **options: Any) -> Any:
        if _is_of_session(storage.data_ptr()):
            _move(torch, storage, pool(storage.device.index))
        return share(storage, *arguments, **options)

    torch.UntypedStorage._share_cuda_ = shared


def _pool_of_runtime(torch: Any, index: int) -> Any:
    """Return a pool of `cuda:index` whose segments the CUDA runtime makes."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _core.__file__, "gpushare_cuda_allocate_shareable", "gpushare_cuda_free_shareable"
    )
    return pools.new(index, allocator.allocator())


def _is_of_session(address: int) -> bool:
    return _core.CudaLane.owns(address) or _core.CudaSegments.owns(address)


def _move(torch: Any, storage: Any, pool: Any) -> None:
    """Allocate the storage again in the pool, after the GPU has finished the work that uses its
    memory."""
    if exports.is_exported(storage):
        raise RuntimeError(IS_EXPORTED)
    device = storage.device
    torch.cuda.synchronize(device)
    with torch.cuda.use_mem_pool(pool, device):
        storage.resize_(storage.nbytes())
