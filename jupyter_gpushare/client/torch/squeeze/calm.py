"""Whether iterations need so much less than their size that the hooks can wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .profile import Counter

CALM = 3  # iterations in a row that decide
FAR = 0.5  # of the size, up to which iterations begin without hooks
GROWN = 1.1  # over the most of these iterations, from which on one needs hooks
LEAST = 64 << 10  # bytes above that most, where the iterations need next to nothing


class Calm:
    """Knows how far memory has risen in the latest iterations, in bytes above their beginning.

    Only the main thread can be called in the middle of an iteration, so only there hooks can wait.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._rises: deque[int] = deque(maxlen=CALM)

    def lasts(self, size: float) -> bool:
        """Whether an iteration of `size` bytes, which begins in this thread, may begin without
        hooks. What it has when they come stays, so most of the size has to be left then."""
        if len(self._rises) < CALM or threading.current_thread() is not threading.main_thread():
            return False
        return self._level() <= FAR * size

    def _level(self) -> int:
        return LEAST + int(GROWN * max(self._rises))

    def watch(self, risen: Callable[[], None]) -> None:
        """Have `risen` called in the main thread once this iteration needs more than the latest."""
        self._counter.watch(self._level(), risen)

    def end(self, base: int) -> None:
        """End an iteration, which began with `base` live bytes."""
        self._counter.unwatch()
        self._rises.append(self._counter.peak() - base)
