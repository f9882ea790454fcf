"""Cells: however one ends, its turn is given back, its waiting line closed, its sharing undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_gpushare.sharing import cell_ended
from jupyter_gpushare.waiting import WaitingLine


class Cells:
    """Watches the ends of cells.

    `post_execute` comes after success, error, interrupt and exit and, unlike `post_run_cell`,
    after silent cells too: whoever ran, the device is free again.
    """

    def __init__(self, ipython: Any, line: WaitingLine) -> None:
        self._events = ipython.events
        self._line = line
        self._at_end: list[Callable[[], None]] = []

    def watch(self) -> None:
        self._events.register("post_execute", self._ended)

    def unwatch(self) -> None:
        self._events.unregister("post_execute", self._ended)
        self._ended()

    def at_end(self, call: Callable[[], None]) -> None:
        """Call once when the present cell ends, the last given first."""
        self._at_end.append(call)

    def _ended(self) -> None:
        cell_ended()
        self._line.cell_ended()
        while self._at_end:
            self._at_end.pop()()
