"""This process's part of a lane of main memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import _core

if TYPE_CHECKING:
    from ...wire.client import LaneMemory

WINDOW_OF_CAPACITY = 2  # survivors take addresses of the lane, but none of its bytes


class HostLane:
    """A lane of main memory; `is_open` while iterations may use it."""

    moves_aside = True  # a write to pages that move waits: csrc/memory/host/fault_net.h

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
        """The broker does that, in the one file that all sessions of the lane map."""

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
        """Bytes that this iteration would have taken of the lane, and whether it has that many.

        What did not fit counts with the most that was alive of it at one time.
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
        """Neither the lane nor libc's heap keeps what iterations had: the next session needs the
        room. After iterations outside of the lane this takes 10 to 50 ms."""
        _core.Lane.promote()
        _core.return_memory_of_iterations()

    def _leave_the_heap(self) -> None:
        """What has its place in the lane from now on leaves nothing behind in libc's heap, where
        it was in iterations that ran outside of the lane or did not fit.

        It takes 10 to 50 ms, and happens when a lane is used that is larger than all before.
        """
        if self._size > self._largest_used:
            self._largest_used = self._size
            _core.return_free_memory()


def _open_window(capacity: int) -> str:
    """Addresses for lanes of up to `capacity` bytes, once per process; empty, or why not."""
    if not _window:
        _window.append(_core.Lane.open(WINDOW_OF_CAPACITY * capacity))
    return _window[0]


_window: list[str] = []  # what opening it said
