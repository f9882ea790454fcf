"""The cells of a notebook that run now, identified by their threads."""

from __future__ import annotations

from collections import Counter
from threading import Lock, get_ident


class Cells:
    """The cells that run, counted by thread. Subshells and messages of widgets run cells in another
    thread than the training, and a cell may run inside another one in one thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: Counter[int] = Counter()  # by thread
        self._assumed: int | None = None  # a thread

    def assume(self) -> None:
        """Note that sharing begins in a cell that was not announced, or in a script."""
        with self._lock:
            if get_ident() not in self._running:
                self._assumed = get_ident()

    def assume_none(self) -> None:
        """Note that sharing has ended: the thread that began it may never run a cell."""
        with self._lock:
            self._assumed = None

    def begins(self) -> bool:
        """Note that a cell begins in this thread; return whether no other cell runs."""
        with self._lock:
            is_first = self._is_none_but_assumed()
            self._running[get_ident()] += 1
            return is_first

    def ends(self) -> tuple[bool, bool]:
        """Note that a cell of this thread has ended. Return whether no other cell runs in this
        thread, and whether none runs at all."""
        with self._lock:
            self._running[get_ident()] -= 1
            self._running += Counter()  # drops threads without a cell
            if self._assumed == get_ident():
                self._assumed = None
            is_outermost = get_ident() not in self._running
            return is_outermost, not self._running and self._assumed is None

    def _is_none_but_assumed(self) -> bool:
        """Whether no cell runs. The cell that was assumed in this thread is the announced one, or
        has ended."""
        if self._assumed == get_ident():
            self._assumed = None
        return not self._running and self._assumed is None
