"""The cost of PyTorch's own calls that a lane on a GPU makes at each boundary, on this build of
it.

There is no session and no broker: the calls run by themselves, in one process. Each step runs by
itself, so that a build in which one fails still measures the others.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..places import IS_HOST, IS_REHEARSAL, fact, figure, say, status_of
from ..trainer import MIB

ROUNDS = 200
# alive outside of the pool, as a model's tensors are
BLOCKS = (0, 100) if IS_REHEARSAL else (0, 1_000, 10_000)
GIB = 1 << 30


def microseconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def context(torch: Any) -> None:
    """Measure a process's memory on the card before its first tensor, and after its first
    product."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    torch.cuda.init()
    torch.cuda.synchronize()
    made = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    torch.cuda.synchronize()
    used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    figure("context_MiB", (made - before) / MIB, "MiB")
    figure("context_after_a_product_MiB", (used - before) / MIB, "MiB")


def pool_calls(torch: Any) -> None:
    """Measure a turn's begin and end, and the live check, beside various numbers of tensors outside
    the pool."""
    native, pool = torch._C, torch.cuda.MemPool()

    def begin_and_end() -> None:
        native._cuda_beginAllocateToPool(0, pool.id)
        native._cuda_endAllocateToPool(0, pool.id)
        native._cuda_releasePool(0, pool.id)

    def live_check() -> None:
        native._cuda_checkPoolLiveAllocations(0, pool.id, set())

    def snapshot() -> None:
        pool.snapshot(include_traces=False)

    kept: list[Any] = []
    for blocks in BLOCKS:
        kept += [torch.empty(MIB // 8, device="cuda") for _ in range(blocks - len(kept))]
        name = f"beside_{blocks}_tensors"
        figure(f"begin_and_end_{name}", microseconds(begin_and_end), "us")
        figure(f"live_check_{name}", microseconds(live_check), "us")
        figure(f"snapshot_{name}", microseconds(snapshot, 5), "us")
    figure("synchronize_when_idle", microseconds(torch.cuda.synchronize), "us")


def resize(torch: Any) -> None:
    """Measure the same-size `resize_` by which survivors move."""
    tensor = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    storage = tensor.untyped_storage()
    before = storage.data_ptr()
    storage.resize_(storage.nbytes())
    fact("same_size_resize_moves", storage.data_ptr() != before and bool((tensor == 1).all()))

    def move() -> None:
        storage.resize_(storage.nbytes())
        torch.cuda.synchronize()

    figure("resize_rate", tensor.numel() / GIB / microseconds(move, 10) * 1e6, "GiB/s")


def freed_pool(torch: Any) -> None:
    """Find out whether segments of an unused pool go back without a call."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_reserved()
    del tensor
    fact("idle_segments_stay_with_their_pool", torch.cuda.memory_reserved() == before)
    del pool
    fact("a_dropped_pool_gives_its_segments_back", torch.cuda.memory_reserved() < before)
    torch.cuda.empty_cache()
    fact("or_with_empty_cache", torch.cuda.memory_reserved() < before)


def hook(torch: Any) -> None:
    """Find out where PyTorch's segments come from with the patched cudaMalloc."""
    from jupyter_gpushare import _core
    from jupyter_gpushare.client.torch.lanes.cuda_chunks import CudaLane

    total = torch.cuda.get_device_properties(0).total_memory
    reason = CudaLane(0, total).trouble or _core.CudaSegments.install_hook()
    fact("cuda_malloc_is_patched", not reason, reason)
    before = _core.CudaSegments.bytes()
    tensor = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
    taken = _core.CudaSegments.bytes() - before
    fact("new_segments_are_ours", taken >= tensor.numel(), f"{taken} bytes")
    fact("they_keep_their_bytes", bool((tensor == 1).all()))

    def take_and_give() -> None:
        torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()

    del tensor
    torch.cuda.empty_cache()
    figure("segment_of_300_MiB_taken_and_given", microseconds(take_and_give, 20), "us")


STEPS = (context, resize, pool_calls, freed_pool, hook)


def main() -> int:
    if IS_HOST:
        say(note="nothing to measure: main memory has no such calls")
        return 0
    import torch

    return status_of((f"{step.__name__}: ", partial(step, torch)) for step in STEPS)


if __name__ == "__main__":
    sys.exit(main())
