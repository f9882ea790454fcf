"""Counters of the bytes of live tensors.

On the host every CPU storage is counted exactly where it is allocated (csrc/memory). On CUDA the
caching allocator reports the bytes. If neither works, the memory of the whole process is counted.
"""

from __future__ import annotations

from typing import Protocol

from .... import _core
from ....devices.cuda_context import CudaContext
from ..lanes.cuda_lane import private_bytes
from ..storages.peaks import peaks_of
from ..storages.tensors import storage_of, tensors, without_subclasses

ODD_BYTES = 100_003  # a size that no other code allocates
TRIES = 8  # of the self-test, since another thread may allocate during one


class ByteCounter(Protocol):
    """Counts the bytes of live tensors."""

    how: str  # one sentence for people

    def live(self) -> int: ...

    def of_thread(self) -> int:
        """Return the live bytes among those that this thread has allocated, up to a constant. If
        threads are not told apart, return all live bytes."""

    def peak(self) -> int: ...

    def take_peak(self) -> tuple[int, int]:
        """Return live and peak bytes; the next peak starts at the bytes that are alive now."""

    def kept(self) -> int:
        """Return the bytes of the device that this process has outside of lanes: at least `live`,
        and the free memory that its allocator caches, as `live` or `take_peak` found it last."""

    def settle(self) -> bool:
        """Wait for the work of this process on the device; return False if the device has failed
        for this process."""

    def give_back(self) -> None:
        """Return the free memory of the allocator to the device."""

    def adopt(self) -> None:
        """Count the storages that were allocated before this counter, as far as Python reaches
        them."""


class CountedStorages:
    """Counts CPU storages at each allocation and each free."""

    how = "every CPU tensor is counted where PyTorch allocates it"

    def __init__(self) -> None:
        # If there was no tensor, none has a gradient that Python cannot reach yet.
        self._may_be_more = adopt_storages()
        self.live = _core.AllocationCounter.live
        self.of_thread = _core.AllocationCounter.bytes_of_thread
        self._marked = 0  # the largest peak of a mark since the last `take_peak`

    def peak(self) -> int:
        return max(self._marked, _core.AllocationCounter.peak())

    def take_peak(self) -> tuple[int, int]:
        live, peak = _core.AllocationCounter.take_peak()
        if self._marked:
            peak, self._marked = max(peak, self._marked), 0
        return live, peak

    def mark(self) -> tuple[int, int]:
        """Return live bytes, and the peak since the last `mark` or `take_peak`."""
        live, peak = _core.AllocationCounter.take_peak()
        self._marked = max(self._marked, peak)
        return live, peak

    def kept(self) -> int:
        return self.live()

    def settle(self) -> bool:
        return True

    def give_back(self) -> None:
        _core.return_free_memory()

    def adopt(self) -> None:
        if self._may_be_more:
            adopt_storages()


class ResidentMemory:
    """Counts the resident memory of the process; none of it is known to be ephemeral."""

    def __init__(self, reason: str) -> None:
        import psutil

        self._process = psutil.Process()
        self.how = f"the whole process counts as model and data: {reason}"

    def live(self) -> int:
        return int(self._process.memory_info().rss)

    of_thread = peak = kept = live

    def take_peak(self) -> tuple[int, int]:
        return (live := self.live()), live

    def settle(self) -> bool:
        return True

    def give_back(self) -> None:
        _core.return_free_memory()

    def adopt(self) -> None:
        """Do nothing: all memory of the process is counted already."""


class CudaAllocator:
    """Counts the bytes of tensors in PyTorch's caching allocator of one GPU, and the CUDA
    context."""

    def __init__(self, device: str) -> None:
        import torch

        self.how = "PyTorch's CUDA allocator is asked at each boundary"
        self._cuda = torch.cuda
        self._context = CudaContext(device)
        self._index = index_of(device)
        self._peaks = peaks_of(self._index)
        self._reserved = 0  # bytes of segments

    def live(self) -> int:
        return self._look()[0]

    def of_thread(self) -> int:
        return self.live()  # a backward frees in threads of PyTorch's own

    def peak(self) -> int:
        return self._look()[1]

    def take_peak(self) -> tuple[int, int]:
        usage = self._look()
        if self._cuda.is_initialized():  # before the first use of the GPU there is no peak to reset
            self._peaks.begin()
        return usage

    def kept(self) -> int:
        """Return the bytes of the context and of whole segments, holes included."""
        return self._context.bytes + private_bytes(self._reserved)

    def _look(self) -> tuple[int, int]:
        """Return live and peak bytes from one query, since PyTorch makes about a hundred figures
        for each."""
        if not self._cuda.is_initialized():
            return self._context.bytes, self._context.bytes
        figures = self._peaks.figures()
        self._reserved = int(figures["reserved_bytes"]["all"]["current"])
        self._context.look(self._reserved)
        allocated = figures["allocated_bytes"]["all"]
        context = self._context.bytes
        return int(allocated["current"]) + context, int(allocated["peak"]) + context

    def settle(self) -> bool:
        """Synchronize; return False after an error such as a failed assertion on the device. Then
        CUDA fails for good in this process, and no memory can be read, freed or moved."""
        if self._cuda.is_initialized():  # a process that has given the GPU no work does not wait
            try:
                self._cuda.synchronize(self._index)
            except RuntimeError:
                return False
        return True

    def give_back(self) -> None:
        if self._cuda.is_initialized():
            self._cuda.empty_cache()

    def adopt(self) -> None:
        """Do nothing: PyTorch's allocator has counted from the beginning."""


class CudaAllocators:
    """Counts several GPUs at once; the largest figure of one GPU counts on each."""

    def __init__(self, devices: int) -> None:
        self._each = [CudaAllocator(f"cuda:{number}") for number in range(devices)]
        self.how = (
            f"PyTorch's CUDA allocator is asked at each boundary; the most on one of {devices} GPUs"
            " counts on each of them"
        )

    def live(self) -> int:
        return max(each.live() for each in self._each)

    def of_thread(self) -> int:
        return self.live()

    def peak(self) -> int:
        return max(each.peak() for each in self._each)

    def take_peak(self) -> tuple[int, int]:
        lives, peaks = zip(*(each.take_peak() for each in self._each), strict=True)
        return max(lives), max(peaks)

    def kept(self) -> int:
        return max(each.kept() for each in self._each)

    def settle(self) -> bool:
        settled = [each.settle() for each in self._each]  # all of them, also after one has failed
        return all(settled)

    def give_back(self) -> None:
        self._each[0].give_back()  # this gives back the caches of all GPUs

    def adopt(self) -> None:
        """Do nothing: PyTorch's allocators have counted from the beginning."""


def counter_of(device: str, devices: int = 1) -> ByteCounter:
    """Return the best counter for ``host`` or ``cuda:N``, or for the first `devices` GPUs at
    once."""
    if devices != 1:
        return CudaAllocators(devices)
    if device.startswith("cuda"):
        return CudaAllocator(device)
    if reason := self_test():
        return ResidentMemory(reason)
    return CountedStorages()


def index_of(device: str) -> int:
    """Return the N of ``cuda:N``."""
    return int(device.partition(":")[2] or 0)


def self_test() -> str:
    """Return an empty string if the counter sees an allocation and its end; else the reason why
    not.

    The test allocates, since builds of PyTorch differ in how they allocate.
    """
    import torch  # noqa: F401  (its library must be loaded to be counted)

    if reason := _core.AllocationCounter.install():
        return reason
    for _ in range(TRIES):
        if _counts_one_storage():
            return ""
    return "this build of PyTorch allocates tensors in a way that cannot be counted"


def _counts_one_storage() -> bool:
    import torch

    live = _core.AllocationCounter.live
    before = live()
    storage = torch.UntypedStorage(ODD_BYTES)
    during = live()
    del storage
    return during - before == ODD_BYTES and live() == before


def adopt_storages() -> bool:
    """Count the CPU storages that existed before: those of tensors that Python can reach. Return
    whether there are any; to look at all objects of a process takes tens of milliseconds.
    """
    import torch

    with without_subclasses():
        found = tensors(torch.Tensor, torch.jit.ScriptModule)  # one has tensors in C++
        for tensor in found:
            storage = storage_of(tensor)
            if storage is not None and storage.device.type == "cpu":  # PyTorch's own memory
                _core.AllocationCounter.adopt(storage.data_ptr(), storage.nbytes())
    return bool(found)
