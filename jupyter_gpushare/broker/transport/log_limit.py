"""Limits the lines of the log: a client that makes the broker complain does not fill the disk."""

from __future__ import annotations

import logging

MOST_LINES = 200  # in a window
WINDOW_SECONDS = 10.0


class Throttle(logging.Filter):
    """Lets MOST_LINES of a window through. The first line of the next window tells how many lines
    were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = 0.0
        self._lines = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not 0 <= record.created - self._begin < WINDOW_SECONDS:  # the clock may be set back
            self._begin_window(record)
        self._lines += 1
        self._left_out += self._lines > MOST_LINES
        return self._lines <= MOST_LINES

    def _begin_window(self, record: logging.LogRecord) -> None:
        if self._left_out:
            record.msg = f"({self._left_out} lines were left out) {record.getMessage()}"
            record.args = ()
        self._begin, self._lines, self._left_out = record.created, 0, 0
