"""The error of a wait that a user has ended is shown as one sentence, since nothing has failed.

IPython shows only the sentence, by `_render_traceback_`, unless the cell has computed before. Then,
and in a script, the traceback shows the user's lines and none of this library. An interrupt stays a
plain KeyboardInterrupt, since the interpreter and the program that started it recognize an
interrupt by that type. A demand that does not fit is shown as a sentence and the line of the cell.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from ..errors import Cancelled, DoesNotFit
from ..format import duration

HIDDEN = (f"{Path(__file__).parent.parent}/", contextlib.__file__)
TOLD_SECONDS = 0.5  # a shorter wait is not worth a word

# Set in IPython: returns the lines of a traceback with these frames.
LinesOf: TypeAlias = Callable[[BaseException | None, TracebackType | None], list[str]]
lines_of: LinesOf | None = None
# Set in IPython: returns the place and the text of the innermost line of a cell in these frames.
LineOf: TypeAlias = Callable[[TracebackType | None], str]
line_of: LineOf | None = None

ADVICE = "Try a smaller batch, or `del` what is not needed."
SQUEEZE_TOO = "Try a smaller batch, `del` what is not needed, or `%gpushare squeeze auto`."


def ended(
    error: BaseException, seconds: float, has_computed: bool
) -> Cancelled | KeyboardInterrupt:
    """Return the error to raise in place of `error`, an interrupt or Cancelled that ended a wait of
    `seconds` seconds. If the cell `has_computed` in earlier turns, an interrupt is one of its
    training: the user's lines in the traceback tell where."""
    if has_computed and not isinstance(error, Cancelled):
        return _of_training(seconds)
    how_long = duration(seconds)
    if isinstance(error, Cancelled):
        told: Cancelled | KeyboardInterrupt = Cancelled(f"{error} after {how_long}")
    else:
        told = KeyboardInterrupt(f"You stopped waiting after {how_long}")
    render = functools.partial(list[str], [f"{told}."])
    vars(told).update(waited_seconds=seconds, _render_traceback_=render)
    return told


def does_not_fit(error: DoesNotFit, squeezing_may_help: bool) -> DoesNotFit:
    """Return the error to raise in place of `error`: its text says what is needed, what the device
    has, and a way out."""
    told = DoesNotFit(f"This notebook {error}. {SQUEEZE_TOO if squeezing_may_help else ADVICE}")
    if line_of is not None:
        vars(told).update(_render_traceback_=functools.partial(_with_line, told, line_of))
    return told


def _with_line(error: DoesNotFit, line_of: LineOf) -> list[str]:
    return [f"DoesNotFit: {error}", line_of(sys.exc_info()[2])]


def _of_training(seconds: float) -> KeyboardInterrupt:
    if seconds < TOLD_SECONDS:
        told, seconds = KeyboardInterrupt("Interrupted"), 0.0
    else:
        told = KeyboardInterrupt(f"Interrupted, {duration(seconds)} into a wait for the device")
    vars(told).update(waited_seconds=seconds)
    if lines_of is not None:
        vars(told).update(_render_traceback_=functools.partial(_of_user, lines_of))
    return told


def _of_user(lines_of: LinesOf) -> list[str]:
    """Return the traceback of the error that IPython handles now, without our frames."""
    _, error, frames = sys.exc_info()
    return lines_of(error, _without_ours(frames))


def told_seconds(error: BaseException | None) -> float | None:
    """Return the seconds of the ended wait that the text of this error tells; None for any other
    error."""
    seconds: float | None = getattr(error, "waited_seconds", None)
    return seconds


def hide_our_frames() -> None:
    """Hide the frames of this library in tracebacks that Python prints by itself, of ended waits
    and of a demand that does not fit.

    Idempotent in a process.
    """
    if _hooks_before:
        return
    _hooks_before.update(main=sys.excepthook, thread=threading.excepthook)
    sys.excepthook, threading.excepthook = _print, _print_in_thread


_hooks_before: dict[str, Any] = {}


def _print(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    if _has_told(error):
        frames = _without_ours(frames)
        error.__traceback__ = frames
    _hooks_before["main"](kind, error, frames)


def _print_in_thread(about: threading.ExceptHookArgs) -> None:
    error = about.exc_value
    if error is not None and _has_told(error):
        error.__traceback__ = frames = _without_ours(about.exc_traceback)
        about = threading.ExceptHookArgs((about.exc_type, error, frames, about.thread))
    _hooks_before["thread"](about)


def _has_told(error: BaseException) -> bool:
    """Whether the text of this error tells all, so that our frames would add nothing."""
    return isinstance(error, DoesNotFit) or told_seconds(error) is not None


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    if frames is None:
        return None
    inner = _without_ours(frames.tb_next)
    if frames.tb_frame.f_code.co_filename.startswith(HIDDEN):
        return inner
    return TracebackType(inner, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)
