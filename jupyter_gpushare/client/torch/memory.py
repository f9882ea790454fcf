"""The memory of PyTorch's iterations: its counter, lane, pager, and the demand that it learns."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING

from ... import _core
from ...wire.messages import Demand
from .counters import ByteCounter, CountedStorages, CudaAllocator, counter_of, index_of
from .cuda_lane import PooledLane, why_not_paged
from .estimator import Estimator, Iteration
from .host_lane import HostLane
from .lane import Lane, NoLane, NoLaneOfSeveral
from .pager import HostPager, Pager, lies_in_memory

if TYPE_CHECKING:
    from ...wire.client import LaneMemory


class Memory:
    """Keeps and learns the memory of this process's iterations. `device` is ``host`` or ``cuda:N``.

    Until the demand is known, iterations stay outside of the lane.
    """

    def __init__(self, device: str = "host", capacity: int = sys.maxsize, devices: int = 1) -> None:
        """`capacity` is the device's, in bytes. Of several `devices` at once, which are the first
        that PyTorch sees, it is that of the smallest, and they have no lanes."""
        self._counter = counter_of(device, devices)
        self.lane, self._pager = _lane_and_pager(self._counter, device, capacity, devices)
        self.estimator = Estimator()
        self.has_news = False  # the demand is known now, or is larger than it was said to be
        self.how = self._counter.how
        self.moves_aside = self.lane.moves_aside
        self.live = self._counter.live  # bytes now
        self.peak = self._counter.peak  # bytes, since the last `begin` or `end`
        self._inside = False
        self._thread = 0  # that began the iteration
        self.is_torn = False
        self._between = 0
        self._capacity = capacity

    def begin(self) -> None:
        """An iteration begins in this thread; nothing if one has begun."""
        if not self._inside:
            self._inside, self.is_torn, self._thread = True, False, get_ident()
            self._between = self._counter.take_peak()[1]
            if self.estimator.recent:
                self.lane.enter(self.estimator.needed)
            else:
                self.lane.stay_out()

    def end(self) -> None:
        """An iteration ended; nothing if none has begun."""
        if not self._inside:
            return
        self._inside = False
        self.is_torn = self._thread != get_ident()
        if not self.estimator.first_is_over:
            self._counter.adopt()  # gradients from before, which a step has shown to Python
        was_in_lane = self.lane.inside
        footprint, did_fit = self.lane.leave()
        live, peak = self._counter.take_peak()
        if was_in_lane:  # what is outside of it by now is not the iteration's
            live = max(live, self._counter.kept())
        if was_in_lane and did_fit and self.estimator.is_learning and not self.lane.survivors():
            self.estimator.forget()
        iteration = Iteration(live, peak, self._between, footprint)
        self.has_news = self.estimator.add(iteration, did_fit) or self.has_news

    def demand(self) -> Demand:
        """What was learned; until two iterations have ended, all that was used is persistent."""
        self.has_news = False
        return self.estimator.demand(self._capacity) or Demand(self.peak(), 0, measured=False)

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        """The lane of the next iterations; None and 0 where there is none. Empty, or why they do
        without the lane that there is."""
        self._capacity = capacity
        return self.lane.use(memory, size, capacity, self.estimator.needed)

    def trim_lane(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size` bytes."""
        self.lane.trim(number, size)

    def survivors(self) -> int:
        """Bytes that are alive in the lane; none where CUDA has failed, whatever Python has."""
        return self.lane.survivors() if self._counter.settle() else 0

    def page_out(self, directory: str) -> tuple[int, str]:
        """Storages of 64 KiB and more go to a file there, or PyTorch's segments: their bytes, or 0
        and why not."""
        if self._pager is None:
            return 0, f"nothing can be paged out: {self.how}"
        if lies_in_memory(directory):
            return 0, (
                f"{directory} lies in main memory, and paging out to there would free nothing:"
                " set page_directory to a directory on a disk"
            )
        if not self._counter.settle():
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
        if self._counter.settle():
            self._counter.give_back()

    def evacuate(self) -> None:
        """The device has done this process's work, and what is alive in the lane has private
        pages."""
        if self._counter.settle():
            self.lane.evacuate()


def _lane_and_pager(
    counter: ByteCounter, device: str, capacity: int, devices: int
) -> tuple[Lane, Pager | None]:
    """Where iterations have their memory, and what moves the memory that persists."""
    if devices != 1:
        return NoLaneOfSeveral(counter.give_back), None
    if isinstance(counter, CudaAllocator):
        lane = PooledLane(index_of(device), capacity)
        trouble = _core.CudaSegments.install_hook() or why_not_paged()
        if trouble:
            counter.how += f", and nothing can be paged out: {trouble}"
        return lane, None if trouble else _core.CudaSegments
    if isinstance(counter, CountedStorages):
        return HostLane(), HostPager()
    return NoLane(), None
