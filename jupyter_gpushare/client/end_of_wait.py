"""The error of a wait that a user has ended is shown as one sentence, since nothing has failed.

IPython shows only the sentence, by `_render_traceback_`; a script's traceback shows the user's
lines and none of this library. An interrupt stays a plain KeyboardInterrupt: by that type the
interpreter, and the program that started it, recognize an interrupt.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import Cancelled
from ..format import duration

HIDDEN = (f"{Path(__file__).parent.parent}/", contextlib.__file__)


def ended(error: BaseException, seconds: float) -> Cancelled | KeyboardInterrupt:
    """Return the error to raise in place of `error`, an interrupt or Cancelled, which ended a wait
    of `seconds` seconds: its text has this length."""
    how_long = duration(seconds)
    if isinstance(error, Cancelled):
        told: Cancelled | KeyboardInterrupt = Cancelled(f"{error} after {how_long}")
    else:
        told = KeyboardInterrupt(f"You stopped waiting after {how_long}")
    render = functools.partial(list[str], [f"{told}."])
    vars(told).update(waited_seconds=seconds, _render_traceback_=render)
    return told


def told_seconds(error: BaseException | None) -> float | None:
    """Return the seconds of the wait that this error ended; None for any other error."""
    seconds: float | None = getattr(error, "waited_seconds", None)
    return seconds


def hide_our_frames() -> None:
    """Hide the frames of this library in tracebacks of ended waits that Python prints by itself.

    Idempotent in a process.
    """
    if _hooks_before:
        return
    _hooks_before.update(main=sys.excepthook, thread=threading.excepthook)
    sys.excepthook, threading.excepthook = _print, _print_in_thread


_hooks_before: dict[str, Any] = {}


def _print(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    if told_seconds(error) is not None:
        frames = _without_ours(frames)
        error.__traceback__ = frames
    _hooks_before["main"](kind, error, frames)


def _print_in_thread(about: threading.ExceptHookArgs) -> None:
    error = about.exc_value
    if error is not None and told_seconds(error) is not None:
        error.__traceback__ = frames = _without_ours(about.exc_traceback)
        about = threading.ExceptHookArgs((about.exc_type, error, frames, about.thread))
    _hooks_before["thread"](about)


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    if frames is None:
        return None
    inner = _without_ours(frames.tb_next)
    if frames.tb_frame.f_code.co_filename.startswith(HIDDEN):
        return inner
    return TracebackType(inner, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)
