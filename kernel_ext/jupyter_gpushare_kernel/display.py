"""Output in a notebook: sentences and tables of the magic, and the waiting line of a cell."""

from __future__ import annotations

import html
from typing import Any

from IPython.core.display_functions import DisplayHandle, display

from jupyter_gpushare.client.notebook.waiting_line import TerminalLine, WaitingLine

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
    """One output of the cell, replaced in place by its display id."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: DisplayHandle | None = None

    def show(self, text: str) -> None:
        bundle: Any = {"text/plain": text, "text/html": as_page(text)}
        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self, summary: str) -> None:
        self.show(summary)
        self._handle = None
