"""What lives across PyTorch iterations (persistent) and inside one (ephemeral), measured in bytes.

On the host every CPU storage is counted exactly where it is allocated (csrc/memory); on CUDA the
caching allocator is asked. Where counting does not work, the whole process counts as persistent.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ... import _core
from ...devices.cuda_context import CudaContext
from ...wire.messages import Demand
from .cuda_lane import PooledLane, private_bytes, why_not_paged
from .peaks import peaks_of
from .tensors import lent_blocks, storage_of, tensors

if TYPE_CHECKING:
    from ...wire.client import LaneMemory

WINDOW = 64  # iterations that a demand looks back
LARGEST_MARGIN = 5  # the margin for varying shapes is at most one 5th of the ephemeral bytes
LEARNINGS = 2  # so many iterations without a survivor, and what was before the second is forgotten
WINDOW_OF_CAPACITY = 2  # survivors take addresses of the lane, but none of its bytes
FILE_SYSTEMS_IN_MEMORY = ("tmpfs", "ramfs")
ODD_BYTES = 100_003  # nobody else allocates just this
TRIES = 8  # of the self-test, since another thread may allocate in the middle of one


class Source(Protocol):
    """Counts the bytes of live tensors."""

    how: str

    def live(self) -> int: ...

    def peak(self) -> int: ...

    def take_peak(self) -> tuple[int, int]:
        """Live and peak bytes; the next peak starts at what is alive now."""

    def kept(self) -> int:
        """Bytes that the device has given this process outside of lanes: at least `live`, and what
        the allocator keeps beside it."""

    def settle(self) -> bool:
        """Return when the device has done this process's work; False if it does none any more."""

    def give_back(self) -> None:
        """Return to the device what is free in the allocator."""

    def adopt(self) -> None:
        """Count what was allocated before us, as far as Python reaches it by now."""


class CountedStorages:
    """CPU storages, counted at each allocation and each free."""

    how = "every CPU tensor is counted where PyTorch allocates it"

    def kept(self) -> int:
        return self.live()

    def settle(self) -> bool:
        return True

    def give_back(self) -> None:
        _core.return_free_memory()

    def __init__(self) -> None:
        self.adopt()
        self.live = _core.AllocationCounter.live
        self.peak = _core.AllocationCounter.peak
        self.take_peak = _core.AllocationCounter.take_peak

    def adopt(self) -> None:
        _adopt_storages()


class WholeProcess:
    """The resident memory of the process; nothing of it is known to be ephemeral."""

    def __init__(self, reason: str) -> None:
        import psutil

        self._process = psutil.Process()
        self.how = f"the whole process counts as persistent memory: {reason}"

    def live(self) -> int:
        return int(self._process.memory_info().rss)

    def peak(self) -> int:
        return self.live()

    def take_peak(self) -> tuple[int, int]:
        return (live := self.live()), live

    def kept(self) -> int:
        return self.live()

    def settle(self) -> bool:
        return True

    def give_back(self) -> None:
        _core.return_free_memory()

    def adopt(self) -> None:
        """Whatever the process has is counted."""


class CudaAllocator:
    """Bytes of tensors in PyTorch's caching allocator of one GPU, and of the CUDA context."""

    def __init__(self, device: str) -> None:
        import torch

        self.how = "PyTorch's CUDA allocator is asked at each boundary"
        self._cuda = torch.cuda
        self._context = CudaContext(device)
        self._index = index_of(device)
        self._peaks = peaks_of(self._index)

    def live(self) -> int:
        return self._look()[0]

    def peak(self) -> int:
        return self._look()[1]

    def take_peak(self) -> tuple[int, int]:
        usage = self._look()
        if self._cuda.is_initialized():  # before the first use of the GPU there is none to reset
            self._peaks.begin()
        return usage

    def kept(self) -> int:
        """Segments have holes, and more than the tensors in them: the device loses them whole."""
        return self._context.bytes + private_bytes()

    def _look(self) -> tuple[int, int]:
        """Live and peak bytes, from one look: PyTorch makes a table of some hundred figures."""
        if not self._cuda.is_initialized():
            return self._context.bytes, self._context.bytes
        figures = self._peaks.figures()
        self._context.look(int(figures["reserved_bytes"]["all"]["current"]))
        allocated = figures["allocated_bytes"]["all"]
        context = self._context.bytes
        return int(allocated["current"]) + context, int(allocated["peak"]) + context

    def settle(self) -> bool:
        """After an error like a failed assertion on the device, CUDA runs here no more: nothing of
        ours is computed, and nothing can be read, freed or moved."""
        if self._cuda.is_initialized():  # a process that has given it no work waits not
            try:
                self._cuda.synchronize(self._index)
            except RuntimeError:
                return False
        return True

    def give_back(self) -> None:
        if self._cuda.is_initialized():
            self._cuda.empty_cache()

    def adopt(self) -> None:
        """PyTorch's allocator has counted from the beginning."""


class CudaAllocators:
    """The same on several GPUs at once; the most on one of them counts on each."""

    def __init__(self, devices: int) -> None:
        self._each = [CudaAllocator(f"cuda:{number}") for number in range(devices)]
        self.how = (
            f"PyTorch's CUDA allocator is asked at each boundary; the most on one of {devices} GPUs"
            " counts on each of them"
        )

    def live(self) -> int:
        return max(each.live() for each in self._each)

    def peak(self) -> int:
        return max(each.peak() for each in self._each)

    def take_peak(self) -> tuple[int, int]:
        lives, peaks = zip(*(each.take_peak() for each in self._each), strict=True)
        return max(lives), max(peaks)

    def kept(self) -> int:
        return max(each.kept() for each in self._each)

    def settle(self) -> bool:
        settled = [each.settle() for each in self._each]  # also after one that has failed
        return all(settled)

    def give_back(self) -> None:
        self._each[0].give_back()  # of all GPUs

    def adopt(self) -> None:
        """As of one."""


class Iteration(NamedTuple):
    """Bytes of one iteration. `footprint` is what it takes of the lane, holes included."""

    live: int  # at its end
    peak: int
    between: int  # the most since the iteration before
    footprint: int

    @property
    def ephemeral(self) -> int:
        return max(self.peak - self.live, self.footprint)

    @property
    def persistent(self) -> int:
        return max(self.live, self.between)


class Lane(Protocol):
    """This process's part of a lane, of whatever device."""

    is_open: bool  # iterations may use it
    moves_aside: bool  # `evacuate` may come while other threads use what is alive in it
    inside: bool  # one does

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        """The lane of the next iterations: `size` bytes of `memory`. Ask how many of them an
        iteration needs only if need be. Empty, or why they do without."""

    def trim(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size` bytes."""

    def enter(self, needed: Callable[[], int]) -> None:
        """An iteration begins. Ask how many bytes of the lane it needs only if need be."""

    def stay_out(self) -> None:
        """The iteration that begins has no part in the lane."""

    def leave(self) -> tuple[int, bool]:
        """Bytes that this iteration would have taken of the lane, and whether it has so many."""

    def survivors(self) -> int:
        """Bytes that are alive in it."""

    def evacuate(self) -> None:
        """Nothing of ours is in it, nor kept of what iterations had outside of it.

        Raises MemoryError where there is no room for what is alive.
        """


class HostLane:
    """Of main memory."""

    moves_aside = True  # whoever writes to pages that move waits: csrc/memory/host/fault_net.h

    def __init__(self) -> None:
        self.is_open = False
        self.inside = False
        self._size = 0  # of the lane
        self._largest_used = 0  # size of a lane that iterations have used

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        if self.inside or (self.is_open and self.survivors()):
            return ""  # it stays as it is: what is alive in it would have to go
        self.is_open = False
        if memory is None or not size:
            return ""
        trouble = _open_window(capacity) or _core.Lane.attach(memory.descriptor, size)
        self.is_open = not trouble
        self._size = size
        return trouble

    def trim(self, number: int, size: int) -> None:
        """The broker does that, in the one file that all map."""

    def enter(self, needed: Callable[[], int]) -> None:
        if self.is_open:
            self.inside = True
            self._leave_the_heap()
            _core.Lane.enter()
        else:
            self.stay_out()

    def stay_out(self) -> None:
        """The iteration that begins has no part in the lane."""
        _core.note_iteration_outside()

    def leave(self) -> tuple[int, bool]:
        """Bytes that this iteration would have taken of the lane, and whether it has so many.

        What did not fit counts as much as was alive of it at one time.
        """
        if not self.inside:
            return 0, True
        self.inside = False
        _core.Lane.leave()
        usage = _core.Lane.usage()
        return usage.footprint + usage.overflow_bytes, usage.overflow_bytes == 0

    def survivors(self) -> int:
        return _core.Lane.survivors()

    def evacuate(self) -> None:
        """Neither the lane nor libc's heap keeps what iterations had: the next one needs the room.

        After iterations outside of the lane that takes 10 to 50 ms.
        """
        _core.Lane.promote()
        _core.return_memory_of_iterations()

    def _leave_the_heap(self) -> None:
        """What has its place in the lane from now on leaves none behind in libc's heap.

        Iterations so far were outside, or did not fit. It takes 10 to 50 ms, as often as a larger
        lane than ever is used.
        """
        if self._size > self._largest_used:
            self._largest_used = self._size
            _core.return_free_memory()


class NoLane:
    """Where iterations cannot be given memory of ours."""

    is_open = inside = False
    moves_aside = True

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        return ""

    def trim(self, number: int, size: int) -> None: ...

    def enter(self, needed: Callable[[], int]) -> None: ...

    def leave(self) -> tuple[int, bool]:
        return 0, True

    def stay_out(self) -> None: ...

    def survivors(self) -> int:
        return 0

    def evacuate(self) -> None: ...


class NoLaneOfSeveral(NoLane):
    """On several GPUs at once: PyTorch gives what it caches back at each turn's end."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def evacuate(self) -> None:
        self._source.give_back()


class HostPager:
    """Pages CPU storages, but not those that system calls may write to, which cannot wait."""

    bytes_out = staticmethod(_core.Pager.bytes_out)
    cancel = staticmethod(_core.Pager.cancel)

    @staticmethod
    def page_out(directory: str) -> str:
        return _core.Pager.page_out(directory, lent_blocks())

    @staticmethod
    def page_in() -> str:
        return _core.Pager.page_in(lent_blocks())


class Memory:
    """Keeps and learns the memory of this process's iterations. `device` is ``host`` or ``cuda:N``.

    Persistent is what is alive at boundaries or comes up between iterations; ephemeral is what an
    iteration has on top of its end, or takes of its lane. Both are the maximum of recent
    iterations. The first iteration is left out: it makes what the optimiser and the libraries keep
    for good. Until the demand is known, iterations stay outside of the lane.
    """

    def __init__(self, device: str = "host", capacity: int = sys.maxsize, devices: int = 1) -> None:
        """`capacity` is the device's, in bytes. Of several `devices` at once, which are the first
        that PyTorch sees, it is that of the smallest, and they have no lanes."""
        self._source = _source(device) if devices == 1 else CudaAllocators(devices)
        self._lane, self._pager = _lane_and_pager(self._source, device, capacity)
        self.how = self._source.how
        self.moves_aside = self._lane.moves_aside
        self.live = self._source.live  # bytes now
        self.peak = self._source.peak  # bytes, since the last `begin` or `end`
        self._recent: deque[Iteration] = deque(maxlen=WINDOW)
        self.has_news = False  # the demand is known now, or has turned out larger than it was said
        self._first_is_over = False
        self._to_forget = LEARNINGS
        self._inside = False
        self._thread = 0  # whose iteration it is
        self.is_torn = False
        self._between = 0
        self._capacity = capacity

    def begin(self) -> None:
        """An iteration begins in this thread; nothing if one has begun."""
        if not self._inside:
            self._inside, self.is_torn, self._thread = True, False, get_ident()
            self._between = self._source.take_peak()[1]
            if self._recent:
                self._lane.enter(self._needed)
            else:
                self._lane.stay_out()

    def end(self) -> None:
        """An iteration ended; nothing if none has begun."""
        if not self._inside:
            return
        self._inside = False
        self.is_torn = self._thread != get_ident()
        if not self._first_is_over:
            self._source.adopt()  # gradients that were there before, which a step has made known
        was_in_lane = self._lane.inside
        footprint, did_fit = self._lane.leave()
        live, peak = self._source.take_peak()
        if was_in_lane:  # what is outside of it by now is not the iteration's
            live = max(live, self._source.kept())
        if was_in_lane and did_fit and self._to_forget:
            self._forget_learning()
        if self._first_is_over:
            self.has_news = self.has_news or not did_fit or not self._recent
            self._recent.append(Iteration(live, peak, self._between, footprint))
        self._first_is_over = True

    def _forget_learning(self) -> None:
        """The first iterations in the lane take more of it than any to come.

        Survivors are among their blocks; and of those that nothing survives, the first finds the
        places of earlier survivors taken. So it is forgotten, and all before it.
        """
        if not self._lane.survivors():
            self._to_forget -= 1
            self._recent.clear()

    def demand(self) -> Demand:
        """What was learned; until two iterations have ended, all that was used is persistent."""
        self.has_news = False
        recent = tuple(self._recent)
        if not recent:
            return Demand(self.peak(), 0, measured=False)
        persistent = max(iteration.persistent for iteration in recent)
        return Demand(persistent, _ephemeral(recent, self._capacity - persistent), measured=True)

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        """The lane of the next iterations; None and 0 where there is none. Empty, or why they do
        without the lane that there is."""
        self._capacity = capacity
        return self._lane.use(memory, size, capacity, self._needed)

    def _needed(self) -> int:
        """Bytes that iterations took of the lane so far, at most; 0 as long as nobody knows."""
        return max((iteration.ephemeral for iteration in self._recent), default=0)

    def trim_lane(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size` bytes."""
        self._lane.trim(number, size)

    def survivors(self) -> int:
        """Bytes that are alive in the lane; none where CUDA has failed, whatever Python has."""
        return self._lane.survivors() if self._source.settle() else 0

    def page_out(self, directory: str) -> tuple[int, str]:
        """Storages of 64 KiB and more go to a file there, or PyTorch's segments: their bytes, or 0
        and why not."""
        if self._pager is None:
            return 0, f"nothing can be paged out: {self.how}"
        if _file_system(directory) in FILE_SYSTEMS_IN_MEMORY:
            return 0, (
                f"{directory} lies in main memory, and paging out to there would free nothing:"
                " set page_directory to a directory on a disk"
            )
        if not self._source.settle():
            return 0, "CUDA has failed in this process: restart the kernel"
        reason = self._pager.page_out(directory)
        size = self._pager.bytes_out()
        return size, reason or ("" if size else "there is nothing to page out")

    def stop_paging_out(self) -> None:
        if self._pager is not None:
            self._pager.cancel()

    def page_in(self) -> str:
        return self._pager.page_in() if self._pager is not None else ""

    def give_back(self) -> None:
        """Nothing where CUDA has failed, since that gives nothing back."""
        if self._source.settle():
            self._source.give_back()

    def evacuate(self) -> None:
        """The device has done our work, and what is alive in the lane has private pages."""
        if self._source.settle():
            self._lane.evacuate()


def _file_system(directory: str) -> str:
    """The kind of the file system that a directory lies in, as in ``ext4``; empty if unknown."""
    import psutil

    kinds = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    path = Path(directory).resolve()
    return next((kinds[str(p)] for p in (path, *path.parents) if str(p) in kinds), "")


def _ephemeral(recent: tuple[Iteration, ...], room: int) -> int:
    """The most that an iteration needed, and as much again as that varied, within limits: the
    margin is for those who have room for it."""
    needs = [iteration.ephemeral for iteration in recent]
    most = max(needs)
    return most + max(0, min(most - min(needs), most // LARGEST_MARGIN, room - most))


def _open_window(capacity: int) -> str:
    """Addresses for lanes of up to `capacity` bytes, once per process; empty, or why not."""
    if not _window:
        _window.append(_core.Lane.open(WINDOW_OF_CAPACITY * capacity))
    return _window[0]


_window: list[str] = []  # what opening it said


def index_of(device: str) -> int:
    """The N of ``cuda:N``."""
    return int(device.partition(":")[2] or 0)


def _lane_and_pager(
    source: Source, device: str, capacity: int
) -> tuple[Lane, type[HostPager | _core.CudaSegments] | None]:
    """Where iterations have their memory, and what moves the memory that persists."""
    if isinstance(source, CudaAllocator):
        lane = PooledLane(index_of(device), capacity)
        trouble = _core.CudaSegments.install_hook() or why_not_paged()
        if trouble:
            source.how += f", and nothing can be paged out: {trouble}"
        return lane, None if trouble else _core.CudaSegments
    if isinstance(source, CudaAllocators):
        return NoLaneOfSeveral(source), None
    if isinstance(source, CountedStorages):
        return HostLane(), HostPager
    return NoLane(), None


def _source(device: str) -> Source:
    if device.startswith("cuda"):
        return CudaAllocator(device)
    if reason := self_test():
        return WholeProcess(reason)
    return CountedStorages()


def self_test() -> str:
    """Empty if the counter sees an allocation and its end; otherwise why it cannot be trusted.

    Judged by the effect, since builds of PyTorch differ in how they allocate.
    """
    import torch  # noqa: F401  (its library must be there to be counted)

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


def _adopt_storages() -> None:
    """Count the storages that were there before us: those of tensors that Python can reach."""
    import torch

    adopt = _core.AllocationCounter.adopt
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors(torch.Tensor):
            storage = storage_of(tensor)
            if storage is not None and storage.device.type == "cpu":  # PyTorch's own memory
                adopt(storage.data_ptr(), storage.nbytes())
