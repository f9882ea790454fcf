"""The waiting line: one line that tells why a process waits for the device, and for how long.

The session calls it in the thread that waits, about twice a second, then once with None. However
often a cell waits, it has one line. It sums up what the session has counted, also for waits too
short to be shown, so that all lines together say what `status` says.
"""

from __future__ import annotations

import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from ..format import duration, ordinal, plain
from ..wire.messages import Wait
from .end_of_wait import told_seconds

CLEAR = "\r\x1b[K"  # to the first column, and erase what stands there
COUNTED_SECONDS = 0.05  # the time of a shorter wait counts, and it is no wait in "3 waits"
TOLD_SECONDS = 0.5  # a cell that has waited for less, without a line, gets none


def sentence(wait: Wait) -> str:
    """The reason of a wait, the holder, the queue position, and about how long it lasts."""
    is_named = not wait.holder or wait.holder in wait.reason
    after = "" if is_named else f" after {plain(wait.holder or '')}"
    about = "" if wait.expected_seconds is None else f", about {duration(wait.expected_seconds)}"
    line = f", {ordinal(wait.place)} in line{after}" if wait.place else ""
    why = f": {plain(wait.reason)}" if wait.reason else ""
    return (
        f"Waiting for the device{line}{about}"
        f" ({duration(wait.waiting_seconds)} so far){why.rstrip('.')}."
        " Interrupt the cell to stop waiting."
    )


class WaitingLine(ABC):
    """Sums up the waits of one cell; a subclass says where the line is shown. For any thread.

    A line that cannot be shown is given up: a front end that went away must not end a training.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._goes_on_now = False  # a wait that is shown
        self._is_shown = False
        self._times = 0
        self._seconds = 0.0

    def __call__(self, wait: Wait | None) -> None:
        with self._lock:
            if wait is not None:
                self._goes_on_now = self._is_shown = True
                self._try(self.show, sentence(wait))
            elif self._goes_on_now:
                self._goes_on_now = False
                self._try(self.finish, self.summary)

    def count(self, seconds: float) -> None:
        """A wait has lasted that long; a call with None comes after it."""
        with self._lock:
            self._times += seconds >= COUNTED_SECONDS
            self._seconds += seconds

    def cell_ended(self, error: BaseException | None = None) -> None:
        """The next wait begins a line of its own. An `error` that ends a wait says of that one by
        itself how long it was."""
        with self._lock:
            self._leave_to(error)
            if self._is_shown or self._seconds >= TOLD_SECONDS:
                self._try(self.close, self.summary if self._seconds >= COUNTED_SECONDS else "")
            self._is_shown, self._times, self._seconds = False, 0, 0.0

    @abstractmethod
    def show(self, text: str) -> None:
        """Put `text` in the place of the line, where it may still change."""

    def finish(self, summary: str) -> None:
        """A wait is over; the next one of this cell uses the same line."""
        self.show(summary)

    def close(self, summary: str) -> None:  # noqa: B027  (most lines need no end)
        """The cell is over: what comes next stands below. The summary may be empty."""

    @property
    def summary(self) -> str:
        times = f", in {self._times} waits" if self._times > 1 else ""
        return f"Waited {duration(self._seconds)} for the device{times}."

    def _leave_to(self, error: BaseException | None) -> None:
        if (seconds := told_seconds(error)) is not None:
            self._times -= seconds >= COUNTED_SECONDS
            self._seconds -= seconds

    def _try(self, show: Callable[[str], None], text: str) -> None:
        # Whatever a front end raises: it is only a line, and an iteration waits behind it.
        with suppress(Exception):
            show(text)


class TerminalLine(WaitingLine):
    """The last line of a terminal, gone when the wait is over, so that output has no gaps.

    Nothing at all where standard error is no terminal: a log wants no lines that change.
    """

    def show(self, text: str) -> None:
        self._write(CLEAR + text[: shutil.get_terminal_size().columns - 1])

    def finish(self, summary: str) -> None:
        self._write(CLEAR)

    def close(self, summary: str) -> None:
        if summary:
            self._write(f"{summary}\n")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(text)
            sys.stderr.flush()
