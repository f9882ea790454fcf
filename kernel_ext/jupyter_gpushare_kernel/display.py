"""Output in a notebook: sentences and tables of the magic, and the waiting line of a cell."""

from __future__ import annotations

import functools
import html
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from IPython.core.display_functions import DisplayHandle, display

from jupyter_gpushare.client.notebook.waiting_line import REFRESH_SECONDS, TerminalLine, WaitingLine

# The panel clears an output with this mark once its cell no longer runs.
WHILE_IT_RUNS = {"jupyter_gpushare": "while the cell runs"}
_SENTENCE = "<div style='font-size:90%;opacity:.8'>{}</div>"


def show(text: str, page: str | None = None) -> None:
    """Show `text`, and in a notebook `page` (HTML) instead of it."""
    display({"text/plain": text, "text/html": page or as_page(text)}, raw=True)


def as_page(text: str) -> str:
    """Return a sentence as HTML."""
    return _SENTENCE.format(html.escape(text))


def waiting_line(ipython: Any) -> WaitingLine:
    """Return the waiting line for the front end of this shell: a notebook's, else a terminal's."""
    return NotebookLine() if hasattr(ipython, "kernel") else TerminalLine()


class NotebookLine(WaitingLine):
    """One output of the cell, replaced in place by its display id.

    While the cell takes turns, a thread updates the line each second: if the other sessions leave,
    no wait updates it any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handle: DisplayHandle | None = None
        self._ends = threading.Event()  # set unless a steady line is shown
        self._ends.set()

    def show(self, text: str) -> None:
        self._ends.set()
        self._draw(text, WHILE_IT_RUNS)

    def finish(self, summary: str) -> None:
        self._ends.set()
        self._draw(summary)

    def show_steady(self, text: str) -> None:
        if self._ends.is_set():
            self._draw(text, WHILE_IT_RUNS)
            ends = threading.Event()
            threading.Thread(target=self._refresh, args=(ends,), daemon=True).start()
            self._ends = ends

    def close(self, summary: str) -> None:
        self.finish(summary)
        self._handle = None

    def _refresh(self, ends: threading.Event) -> None:
        while not ends.wait(REFRESH_SECONDS):
            with self._lock:
                if ends.is_set():
                    return
                goes_on = self._goes_on_now or self._rounds.go_on(time.monotonic())
                if goes_on:
                    self._try(functools.partial(self._draw, metadata=WHILE_IT_RUNS), self.steady)
                else:
                    self._try(self.finish, self.summary)

    def _draw(self, text: str, metadata: Mapping[str, str] = MappingProxyType({})) -> None:
        bundle: Any = {"text/plain": text, "text/html": as_page(text)}
        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True, metadata={**metadata})
        else:
            self._handle.update(bundle, raw=True, metadata={**metadata})
