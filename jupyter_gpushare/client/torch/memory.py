"""The memory of PyTorch's iterations: its counter, lane and pager, and its measured demand."""

from __future__ import annotations

import math
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ... import _core
from ...wire.demand import Curve, Demand, Squeezing
from . import unpublished
from .demand.counters import ByteCounter, CountedStorages, CudaAllocator, counter_of, index_of
from .demand.estimator import Estimator, Iteration
from .holdings import held_by
from .lanes.cuda_lane import PooledLane, why_not_paged
from .lanes.host_lane import HostLane
from .lanes.lane import Lane, NoLane, NoLaneOfSeveral
from .lanes.pager import GpuPager, HostPager, Pager, lies_in_memory
from .squeeze.files.page_file import NO_QUOTAS
from .squeeze.no_squeeze import NoSqueeze

if TYPE_CHECKING:
    from ...wire.client import LaneMemory
    from ..options import Wanted
    from ..session.memory import HeldBytes, PageQuotas
    from .squeeze.squeeze import Squeeze

ELSEWHERE = "that is possible on the device `host` only, and where tensors are counted"


class TorchMemory:
    """Provides and measures the memory of this process's iterations on ``host`` or ``cuda:N``.

    Until the demand is known, iterations stay outside of the lane.
    """

    def __init__(
        self,
        device: str = "host",
        capacity: int = sys.maxsize,
        devices: int = 1,
        page_directory: Callable[[], str] = tempfile.gettempdir,
        tell: Callable[[str], None] = print,
        quotas: PageQuotas = NO_QUOTAS,
    ) -> None:
        """`capacity` is that of the device, in bytes. Several `devices` are the first that PyTorch
        sees; then `capacity` is that of the smallest, and there are no lanes. `page_directory`
        returns the directory to which squeezed iterations write, within the `quotas`, and `tell`
        gets sentences for the user."""
        self.forget()
        self._counter = counter_of(device, devices)
        self.lane, self._pager = _lane_and_pager(
            self._counter, device, capacity, devices, page_directory
        )
        self.estimator = Estimator()
        self.squeeze = _squeeze(self._counter, page_directory, tell, quotas)
        self.has_news = False  # the demand is known now, or is larger than reported
        self.how = self._counter.how + unpublished.without()
        self.seconds_to_move = self.lane.seconds_to_move
        self.live = self._counter.live  # bytes in use now
        self.of_thread = self._counter.of_thread  # bytes, those of this thread alone
        self.peak = self._counter.peak  # bytes, since the last `begin` or `end`
        self._inside = False
        self._thread = 0  # the thread that began the iteration
        self.is_torn = False
        self._between = 0
        self._kept = 0  # bytes outside of the lane since the last turn ended; 0 in an iteration
        self._said = 0  # persistent bytes of the last demand
        self._capacity = self._room = capacity
        self._first_peak = 0  # bytes of the first iteration, which no demand takes into account
        self._learns_first = True  # squeeze options are learned before the demand is reported

    def forget(self) -> None:
        """Make the lock again in a forked child, since a thread that is gone may have had it.

        Iterations begin and end in the lane under this lock, and messages change the lane under it:
        the keeper, or the end of a cell, takes messages while another thread begins an iteration.
        """
        self._changes = threading.RLock()

    def begin(self) -> None:
        """Begin an iteration in this thread; do nothing if one has begun."""
        if not self._inside:
            self._inside, self.is_torn, self._thread = True, False, get_ident()
            self._kept = 0
            if self.squeeze.is_needed:  # this may free memory
                self.squeeze.begin(may_learn=self.estimator.first_is_over)
            live, peak = self._counter.take_peak()
            self._between = live if self.estimator.begins_anew else peak
            if self.lane.is_open:  # all memory outside of the lane persists
                self._between = max(self._between, self._counter.kept())
            with self._changes:
                if self.estimator.recent:
                    self.lane.enter(self.estimator.needed)
                else:
                    self.lane.stay_out()

    def end(self) -> None:
        """End the iteration; do nothing if none has begun."""
        if not self._inside:
            return
        self._inside = False
        self.is_torn = self._thread != get_ident()
        target, was_held = self.squeeze.target, self.squeeze.is_held
        if was_squeezed := self.squeeze.is_active:
            self.squeeze.end()
        iteration, did_fit = self._leave_lane()
        if was_squeezed:
            self.squeeze.learn(iteration.ephemeral, self.estimator.needed())
        self._learn(iteration, did_fit)
        is_held = self.squeeze.note(iteration.ephemeral, was_squeezed and not was_held)
        if was_held and self.squeeze.adapt(iteration.ephemeral):
            self.has_news = True
        # The next one needs less, if this one was too large.
        if self.squeeze.target != target or (is_held and not was_held):
            self.estimator.limit(self.squeeze.target)

    def _leave_lane(self) -> tuple[Iteration, bool]:
        """Return the measured iteration, and whether it fitted in its lane."""
        if not self.estimator.first_is_over:
            self._counter.adopt()  # earlier gradients, which Python reaches since a step
        was_in_lane = self.lane.inside
        with self._changes:
            footprint, did_fit = self.lane.leave()
        live, peak = self._counter.take_peak()
        if was_in_lane:  # memory outside of the lane is not the iteration's
            live = max(live, self._counter.kept())
            self._forget_first_ones(did_fit)
        return Iteration(live, peak, self._between, footprint), did_fit

    def _forget_first_ones(self, did_fit: bool) -> None:
        """Forget the footprints of iterations from which the lane still learned."""
        if did_fit and self.estimator.is_learning and not self.lane.survivors():
            self.estimator.forget()
        if self.lane.learns:
            self.estimator.recent.clear()

    def _learn(self, iteration: Iteration, did_fit: bool) -> None:
        if self.estimator.add(iteration, did_fit):
            self.has_news = True
            is_left = self.squeeze.target == math.inf and not self.squeeze.is_futile
            if is_left and not self.squeeze.has_news:
                self.squeeze.forget_options()
        elif not self.estimator.recent:
            self._first_peak = iteration.peak
        if iteration.peak > self._left():
            self.squeeze.lack_room(True)
        if self.squeeze.target == math.inf and self.squeeze.is_outdated(iteration.ephemeral):
            self.squeeze.forget_options()
        if self.squeeze.has_news and self.estimator.recent:
            self.has_news, self.squeeze.has_news = True, False

    def demand(self) -> Demand:
        """Return the measured demand; until two iterations have ended, all memory is persistent."""
        self.has_news = False
        demand = self._measured()
        self._said = demand.persistent_bytes
        return demand

    def _measured(self) -> Demand:
        demand = self._estimate()
        whole = self._needs(demand)
        self.squeeze.lack_room(whole > self._left())
        learns_first = self._learns_first or whole > self._capacity
        if demand is None or (learns_first and self.squeeze.is_learning()):
            return Demand(max(self.peak(), self._kept), 0, measured=False)
        self._learns_first = False
        options = self.squeeze.options(self.estimator.unlimited(demand, self._left()))
        if not options:
            return demand
        return Demand(demand.persistent_bytes, options[0].bytes, True, options)

    def _needs(self, demand: Demand | None) -> int:
        """Return the bytes that unsqueezed iterations need, with all persistent memory; 0 until one
        has ended."""
        if demand is None:
            return self._first_peak
        return demand.persistent_bytes + self.estimator.unlimited(demand, self._left())

    def _estimate(self) -> Demand | None:
        return self.estimator.demand(self._left(), self._kept)

    def _left(self) -> int:
        return min(self._room, self._capacity)

    @property
    def why_not_squeezed(self) -> str:
        return self.squeeze.why_not

    @property
    def squeeze_progress(self) -> str:
        return self.squeeze.progress

    @property
    def how_squeezed(self) -> str:
        return self.squeeze.how

    @property
    def squeezing(self) -> Squeezing | None:
        return self.squeeze.squeezing

    @property
    def squeeze_floor(self) -> int:
        return self.squeeze.floor

    def held_by(self, variables: Mapping[str, Any]) -> list[HeldBytes]:
        """Return the memory that variables of a notebook hold and its next iteration does not need.
        Return nothing in an open iteration, whose thread may write gradients. None may begin
        meanwhile."""
        return [] if self._inside else held_by(variables)

    def measure_anew(self) -> None:
        """Forget what earlier iterations needed, as soon as one more has ended."""
        self.estimator.begins_anew = True

    def want_squeeze(self, wanted: Wanted) -> None:
        """Squeeze the next iterations as the user wants it."""
        self.squeeze.want(wanted)
        self.estimator.limit(self.squeeze.target)
        self.has_news = self.has_news or bool(self.estimator.recent)

    def leave_room(self, size: int) -> None:
        """Note that the other sessions leave this one `size` bytes of the device. The margin of the
        demand depends on it."""
        before = self._estimate()
        self._room = size
        demand = self._estimate()
        self.has_news = self.has_news or demand != before
        self.squeeze.lack_room(self._needs(demand) > self._left())

    def has_to_learn(self) -> bool:
        """Whether iterations need more than that room, and have to show how far they can be
        squeezed. Until then the demand is not measured."""
        self._learns_first = self._learns_first or self.squeeze.is_learning()
        return self.squeeze.is_learning()

    def squeeze_to(self, size: int) -> None:
        """Squeeze the next iterations to `size` bytes of the lane, if the user leaves that to the
        broker; 0: leave them as they are."""
        before = self.squeeze.target
        self.squeeze.grant(size)
        if self.squeeze.target != before:
            self.estimator.limit(self.squeeze.target)

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        """Set the lane of the next iterations; None and 0 if there is none. Return an empty string,
        or why they run without the lane."""
        self._capacity = capacity
        with self._changes:
            return self.lane.use(memory, size, capacity, self.estimator.needed)

    def trim_lane(self, number: int, size: int) -> None:
        """Release the part above `size` bytes of the memory with that number."""
        with self._changes:
            self.lane.trim(number, size)

    def curve(self) -> Curve | None:
        return self.lane.curve()

    def survivors(self) -> int:
        """Return the bytes that are alive in the lane; 0 if CUDA has failed in this process."""
        return self.lane.survivors() if self._counter.settle() else 0

    def page_out(self, directory: str) -> tuple[int, str]:
        """Move storages of 64 KiB and more, or PyTorch's segments, to a file in `directory`. Return
        the bytes that are out and an empty string, or 0 and the reason. If only a part can leave,
        it comes back; bytes for which there is no room any more stay out."""
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
        if reason and self._pager.bytes_out():
            self._pager.page_in()
        if size := self._pager.bytes_out():
            return size, ""
        return 0, reason or "there is nothing to page out"

    def stop_paging_out(self) -> None:
        if self._pager is not None:
            self._pager.cancel()

    def page_in(self) -> str:
        return self._pager.page_in() if self._pager is not None else ""

    def bytes_out(self) -> int:
        """Return the bytes that are still out; 0 if CUDA has failed, since they never come back."""
        if self._pager is None or not self._counter.settle():
            return 0
        return self._pager.bytes_out()

    def give_back(self) -> None:
        """Return free memory to the device; do nothing if CUDA has failed, since that frees
        nothing."""
        if self._counter.settle():
            self._counter.give_back()
            self._kept = min(self._kept, self._has_outside())

    def may_move(self) -> bool:
        """Return whether survivors may move out of the lane now, since no other thread computes."""
        return self.lane.may_move()

    def evacuate(self) -> None:
        """Wait for this process's work on the device, and move survivors of the lane to private
        pages. If the process now has more bytes than it has reported, it has news."""
        if self._counter.settle():
            self.lane.evacuate()
            self._kept = self._has_outside()
            self.has_news = self.has_news or self._kept > self._said

    def release_lane(self) -> None:
        """Give up the memory of the lane, unless something is alive in it, or CUDA has failed."""
        if self._counter.settle():
            with self._changes:
                self.lane.release()

    def _has_outside(self) -> int:
        return max(self._counter.live(), self._counter.kept())


def _squeeze(
    counter: ByteCounter,
    page_directory: Callable[[], str],
    tell: Callable[[str], None],
    quotas: PageQuotas,
) -> Squeeze | NoSqueeze:
    if not isinstance(counter, CountedStorages):
        return NoSqueeze(ELSEWHERE)
    if reason := unpublished.lacks(unpublished.SQUEEZING):
        return NoSqueeze(reason)
    try:
        from .squeeze.squeeze import Squeeze
    except (ImportError, AttributeError) as error:
        return NoSqueeze(f"PyTorch {torch.__version__} is another one: {error}")
    return Squeeze(counter, page_directory, tell, quotas)


def _lane_and_pager(
    counter: ByteCounter,
    device: str,
    capacity: int,
    devices: int,
    page_directory: Callable[[], str],
) -> tuple[Lane, Pager | None]:
    """Return the lane of iterations, and the pager of persistent memory, if there is one."""
    if devices != 1:
        return NoLaneOfSeveral(counter.give_back), None
    if isinstance(counter, CudaAllocator):
        lane = PooledLane(index_of(device), capacity)
        trouble = _core.CudaSegments.install_hook() or why_not_paged()
        if trouble:
            counter.how += f", and nothing can be paged out: {trouble}"
        return lane, None if trouble else GpuPager()
    if isinstance(counter, CountedStorages):
        return HostLane(page_directory), HostPager()
    return NoLane(), None
