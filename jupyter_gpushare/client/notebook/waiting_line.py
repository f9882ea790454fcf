"""The waiting line: one line that tells why a process waits for the device, and for how long.

The session calls it in the thread that waits, about twice a second, and `finish_wait` at the end of
each wait. A cell has one line for all its waits. The line sums up what the session has counted,
including waits too short to be shown, so that all lines together agree with `status`.
"""

from __future__ import annotations

import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from ...format import LABELS, duration, expected, plain
from ...wire.messages import Wait
from ..end_of_wait import TOLD_SECONDS, told_seconds

CLEAR = "\r\x1b[K"  # go to the first column and erase the line
COUNTED_SECONDS = 0.05  # a shorter wait adds to the time, but not to "3 waits"
STOP = "Interrupt the cell to stop waiting."
RESUME = (
    "Resume in the panel, or `%gpushare pause --resume NAME` in another notebook, ends the pause."
)


def sentence(wait: Wait) -> str:
    """Return the reason of a wait, the holder, the queue position and the expected time as text."""
    is_named = not wait.holder or wait.names_holder()
    after = "" if is_named else f" after {plain(wait.holder or '')}"
    left = wait.expected_seconds
    about = "" if left is None else f", {expected(left, wait.expected_is_bound)}"
    line = f", {LABELS['position']} {wait.position}{after}" if wait.position else ""
    why = f": {plain(wait.reason)}" if wait.reason else ""
    end = f"{RESUME} {STOP}" if any(one.code == "paused" for one in wait.why) else STOP
    left = wait.remaining_seconds
    all_done = "" if left is None else f" All iterations are done in about {duration(left)}."
    return (
        f"Waiting for the device{line}{about}"
        f" ({duration(wait.waiting_seconds)} so far){why.rstrip('.')}.{all_done} {end}"
    )


class WaitingLine(ABC):
    """Sums up the waits of one cell; a subclass shows the line. Any thread may call it.

    A line that cannot be shown is dropped: a front end that has gone must not end a training.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._goes_on_now = False  # a wait that is shown continues
        self._is_shown = False
        self._times = 0
        self._seconds = 0.0

    def __call__(self, wait: Wait) -> None:
        with self._lock:
            self._goes_on_now = self._is_shown = True
            self._try(self.show, sentence(wait))

    def finish_wait(self, seconds: float) -> None:
        """Count a wait of that many seconds, which has ended."""
        with self._lock:
            self._times += seconds >= COUNTED_SECONDS
            self._seconds += seconds
            if self._goes_on_now:
                self._goes_on_now = False
                self._try(self.finish, self.summary)

    def cell_ended(self, error: BaseException | None = None) -> None:
        """Close the line; the next wait begins a new one. An `error` that ended a wait is not
        summed up here, since it tells its own length."""
        with self._lock:
            self._leave_to(error)
            if self._is_shown or self._seconds >= TOLD_SECONDS:
                self._try(self.close, self.summary if self._seconds >= COUNTED_SECONDS else "")
            self._is_shown, self._times, self._seconds = False, 0, 0.0

    @abstractmethod
    def show(self, text: str) -> None:
        """Show `text` as the line, which may still change."""

    def finish(self, summary: str) -> None:
        """Show that a wait has ended; the next one of this cell uses the same line."""
        self.show(summary)

    def close(self, summary: str) -> None:  # noqa: B027  (most lines need no end)
        """End the line with its cell: later output stands below it. The summary may be empty."""

    @property
    def summary(self) -> str:
        times = f", in {self._times} waits" if self._times > 1 else ""
        return f"Waited {duration(self._seconds)} for the device{times}."

    def _leave_to(self, error: BaseException | None) -> None:
        if (seconds := told_seconds(error)) is not None:
            self._times -= seconds >= COUNTED_SECONDS
            self._seconds -= seconds

    def _try(self, show: Callable[[str], None], text: str) -> None:
        # Any error of a front end is ignored: an iteration must not fail for a line.
        with suppress(Exception):
            show(text)


class TerminalLine(WaitingLine):
    """The last line of a terminal; it is erased at the end of the wait, so that output has no gaps.

    If standard error is no terminal it shows nothing, since a log has no lines that change.
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
