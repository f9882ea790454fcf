"""This process's part of a lane of main memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .... import _core
from ....wire.demand import Curve
from ....wire.messages import ALONE
from .pager import lies_in_memory

if TYPE_CHECKING:
    from ....wire.client import LaneMemory

WINDOW_OF_CAPACITY = 2  # survivors occupy addresses of the lane, but none of its bytes


class Attached(NamedTuple):
    """The part of a lane for iterations: `size` bytes of its memory with that number, or one end
    of them."""

    number: int
    size: int
    end: int


class HostLane:
    """A lane of main memory; `is_open` while iterations may use it.

    If it `is_shared`, another session may use it at the same time, from the other end, and an
    allocation waits if that one needs the memory first.
    """

    learns = False
    seconds_to_move = 0.0  # a few pages of main memory are moved at once

    def __init__(self, page_directory: Callable[[], str] = str) -> None:
        """`page_directory` returns the directory for memory that has to leave a shared lane in the
        middle of an iteration."""
        self.is_open = False
        self.is_shared = False
        self.inside = False
        self._page_directory = page_directory
        self._attached: Attached | None = None
        self._next: tuple[LaneMemory, int, int] | None = None  # came in the middle of an iteration
        self._size = 0  # of the lane
        self._largest_used = 0  # the largest size of a lane that iterations have used

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        self._next = None
        if memory is not None and memory.end != ALONE:
            return self._use_end(memory, size, capacity)
        if self.inside or (self.is_open and self.survivors()):
            return ""  # the lane stays as it is: its survivors would have to move
        self.is_open = self.is_shared = False
        if memory is None or not size:
            return ""
        trouble = _open_window(capacity) or _core.Lane.attach(memory.descriptor, size)
        self.is_open = not trouble
        self._attached = None if trouble else Attached(memory.number, size, ALONE)
        self._size = size
        return trouble

    def _use_end(self, memory: LaneMemory, size: int, capacity: int) -> str:
        """Use one end of the lane. Survivors move out first. While there is no room for them, the
        lane stays as it is, and the broker reserves the part that this session has of it."""
        wanted = Attached(memory.number, size, memory.end)
        if wanted == self._attached and self.is_open:
            return ""  # the lane keeps what it has learned of its iterations
        if self.inside:
            self._next = (memory, size, capacity)
            return ""
        try:
            _core.Lane.promote()
        except MemoryError:
            return ""
        self.is_open = self.is_shared = False
        end = _core.LaneEnd(memory.ledger, memory.end, self._directory())
        trouble = _open_window(capacity) or _core.Lane.attach(memory.descriptor, size, end)
        if trouble:
            memory.leave_end()
        self.is_open = self.is_shared = not trouble
        self._attached = None if trouble else wanted
        self._size = size
        return trouble

    def _directory(self) -> str:
        """Return the directory; an empty string if files there would use main memory as well."""
        directory = self._page_directory()
        return "" if lies_in_memory(directory) else directory

    def trim(self, number: int, size: int) -> None:
        """Release all of the memory if `size` is 0, unless an iteration or a survivor is in it. A
        part is not released here: the broker trims the one file that all sessions of the lane
        map."""
        is_used = self.inside or self.survivors()
        if size or is_used or self._attached is None or self._attached.number != number:
            return
        self.release()

    def enter(self, needed: Callable[[], int]) -> None:
        if self.is_open:
            self.inside = True
            self._leave_the_heap()
            _core.Lane.enter()
        else:
            self.stay_out()

    def stay_out(self) -> None:
        """Note that the iteration that begins does not use the lane."""
        _core.note_iteration_outside()

    def leave(self) -> tuple[int, bool]:
        """Leave the lane. Return the bytes that this iteration would have taken of it, and whether
        they fit.

        Blocks that did not fit count with the most bytes of them that were alive at one time. If
        the lane was lost meanwhile, both results mean nothing, since the earlier contents of the
        lane were counted twice.
        """
        if not self.inside:
            return 0, True
        self.inside = False
        _core.Lane.leave()
        usage = _core.Lane.usage()
        is_lost = self.is_shared and _core.Lane.co_lane_usage().is_lost
        if self._next is not None:
            later, self._next = self._next, None
            self._use_end(*later)
        if is_lost:
            return 0, True
        return usage.footprint + usage.overflow_bytes, usage.overflow_bytes == 0

    def curve(self) -> Curve | None:
        known = _core.Lane.curve()
        peak = max(known.bytes)
        if not peak:
            return None
        percent = tuple(-(-100 * size // peak) for size in known.bytes)
        return Curve(round(known.seconds, 6), peak, percent)

    def survivors(self) -> int:
        return _core.Lane.survivors()

    def may_move(self) -> bool:
        return True  # a write to pages that move waits: csrc/memory/host/fault_net.h

    def evacuate(self) -> None:
        """Remove the memory of iterations from the lane and from libc's heap, since the next
        session needs the room. After iterations outside of the lane this takes 10 to 50 ms."""
        _core.Lane.promote()
        if self.is_shared:
            _core.Lane.pass_on()
        _core.return_memory_of_iterations()

    def release(self) -> None:
        """Give up the memory for good, unless an iteration or a survivor is in it."""
        self._next = None
        if self._attached is not None and not _core.Lane.detach():
            self.is_open = self.is_shared = False
            self._attached = None

    def _leave_the_heap(self) -> None:
        """Free the memory in libc's heap that was used by iterations that ran outside of the lane
        or did not fit; from now on they use the lane.

        This takes 10 to 50 ms, and happens when a lane is larger than all before.
        """
        if self._size > self._largest_used:
            self._largest_used = self._size
            _core.return_free_memory()


def _open_window(capacity: int) -> str:
    """Reserve addresses for lanes of up to `capacity` bytes, once per process. Return an empty
    string, or why that failed."""
    if not _window:
        _window.append(_core.Lane.open(WINDOW_OF_CAPACITY * capacity))
    return _window[0]


_window: list[str] = []  # the result of opening it
