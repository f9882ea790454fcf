"""The activity of a thread, as far as its stack and its processor time show it."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable

LOOK_SECONDS = 0.09  # the least time between two looks at a thread; the keeper makes 20 a second
# A share of the time. A thread that polls uses less of a processor, and a thread that computes gets
# more even on the busiest machine.
RESTING_SHARE = 0.05

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# Event loops and pools of these packages run user code, and compute nothing by themselves.
_RUNNERS = ("anyio", "ipykernel", "ipykernel_launcher.py", "tornado", "traitlets", "zmq")


class Rest:
    """Detects that a thread rests; it is used while the thread is alive and in one iteration."""

    def __init__(self) -> None:
        self._look: tuple[float, float] | None = None  # time, and processor seconds used by then

    def is_seen(self, thread: int) -> bool:
        """Look; return whether the thread has hardly used a processor since an earlier look: then
        it waits, perhaps in C code. A thread that waits for a GPU may look the same."""
        now, used = time.monotonic(), _processor_seconds(thread)
        since, used_before = self._look or (now, used)
        is_too_soon = now - since < LOOK_SECONDS
        self._look = (since, used_before) if is_too_soon else (now, used)
        return not is_too_soon and used - used_before < RESTING_SHARE * (now - since)


def may_compute(thread: int, has_tensors: Callable[[], bool], rest: Rest) -> bool:
    """Return whether a thread may compute in the iteration that it has begun. `has_tensors` returns
    whether tensors of that iteration are alive.

    The thread computes no more if it has ended, or has returned to the loop of its pool or server:
    then no user code is on its stack. But an event loop may have suspended user code, which will
    continue with its tensors, and so will a thread that waits, as for another thread. If no tensors
    are alive, no backward follows.
    """
    files = _stack(thread)
    if any(_computes(file) for file in files):
        return True
    if all(_runs_others(file) for file in files) and not any(map(_is_event_loop, files)):
        return False
    waits = _runs_others(files[0]) or rest.is_seen(thread)
    return not waits or has_tensors()


def runs(frame: int) -> bool:
    """Return whether the frame with that id is on this thread's stack. Callers keep ids, since a
    frame would keep its variables, and their tensors, alive."""
    caller = sys._getframe() if frame else None
    while caller is not None and id(caller) != frame:
        caller = caller.f_back
    return caller is not None


def _processor_seconds(thread: int) -> float:
    """Return the processor seconds of a thread that has not ended; off Linux, a clock that makes it
    look as if it never rested."""
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _stack(thread: int) -> list[str]:
    """Return the files of the thread's functions, the innermost first; none if it has ended."""
    frame, files = sys._current_frames().get(thread), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


@functools.cache
def _runs_others(file: str) -> bool:
    if file.startswith("<frozen "):
        return True
    parts = file.split(os.sep)
    if any(name in parts for name in _INSTALLED):
        return any(name in parts for name in _RUNNERS)
    return file.startswith(_STANDARD_LIBRARY)


@functools.cache
def _computes(file: str) -> bool:
    """Whether the file belongs to PyTorch, except to its loaders, which wait for data."""
    return "torch" in file.split(os.sep) and os.path.join("torch", "utils", "data") not in file


@functools.cache
def _is_event_loop(file: str) -> bool:
    return "asyncio" in file.split(os.sep)
