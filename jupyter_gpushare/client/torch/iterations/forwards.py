"""Tells forwards with gradients that are inference from those whose backward is to come."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Protocol

from .profile import NEAR

STEPLESS_FORWARDS = 32  # more of them without a candidate are inference without no_grad
# The live bytes are compared with those of this number of forwards, since a process may keep more
# for good. A loop of recurrent cells has fewer steps between two candidates.
RECENT_FORWARDS = 512


class LiveBytes(Protocol):
    """The interface that counts the bytes of live tensors."""

    def live(self) -> int: ...

    def of_thread(self) -> int: ...

    def peak(self) -> int: ...


class Floor:
    """The fewest bytes when one of the recent forwards began: at least RECENT_FORWARDS of them."""

    def __init__(self) -> None:
        self._fewest = self._fewest_before = sys.maxsize

    def note(self, size: int, forwards: int) -> int:
        """Note the live bytes when a forward begins, after `forwards` others. Return by how much
        they are above the floor."""
        if forwards % RECENT_FORWARDS == 0:
            self._fewest, self._fewest_before = size, self._fewest
        self._fewest = min(self._fewest, size)
        return size - min(self._fewest, self._fewest_before)


class Forwards:
    """The outermost forwards with gradients since the last candidate for a boundary."""

    def __init__(self, memory: LiveBytes) -> None:
        self._memory = memory
        self._start()

    def _start(self) -> None:
        self._count = 0
        self._of_process = Floor()
        self._of_thread = Floor()
        self._thread = 0

    def forget(self) -> None:
        """Begin to count anew: a candidate has come."""
        if self._count:
            self._start()

    def note(self) -> bool:
        """Note that a forward begins in this thread. Return whether it is inference and no
        activations wait for a backward, so that the iteration may end before this forward."""
        above = self._above_floor()
        self._count += 1
        return self._count > STEPLESS_FORWARDS and above <= self._memory.peak() // NEAR

    def _above_floor(self) -> int:
        """Return the bytes that may wait for a backward. They are the smaller of two counts: that
        of the process includes bytes of passengers, and that of this thread includes bytes that
        another thread has freed."""
        if self._thread != get_ident():
            self._thread, self._of_thread = get_ident(), Floor()
        return min(
            self._of_process.note(self._memory.live(), self._count),
            self._of_thread.note(self._memory.of_thread(), self._count),
        )
