"""What a thread does, as far as its stack and its use of a processor show."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable

LOOK_SECONDS = 0.09  # at least, between two looks at a thread, of which the keeper has 20 a second
# Of the time. A thread that polls uses less; one that computes has more on the busiest machine.
RESTING_SHARE = 0.05

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# Packages whose event loops and pools run user code, and compute nothing by themselves.
_RUNNERS = ("anyio", "ipykernel", "ipykernel_launcher.py", "tornado", "traitlets", "zmq")


class Rest:
    """Of a thread, seen while it lives and is in one iteration."""

    def __init__(self) -> None:
        self._look: tuple[float, float] | None = None  # when, and what it had used by then

    def is_seen(self, thread: int) -> bool:
        """Whether it has hardly used a processor since an earlier look: then it waits, wherever in
        C code that may be. What waits for a GPU may do so too."""
        now, used = time.monotonic(), _processor_seconds(thread)
        since, used_before = self._look or (now, used)
        is_too_soon = now - since < LOOK_SECONDS
        self._look = (since, used_before) if is_too_soon else (now, used)
        return not is_too_soon and used - used_before < RESTING_SHARE * (now - since)


def may_compute(thread: int, has_tensors: Callable[[], bool], rest: Rest) -> bool:
    """Whether a thread may compute in the iteration that it has begun; `has_tensors` tells whether
    something of that iteration is alive.

    It does not if it has ended, or has come back to the loop of its pool or server: nothing of its
    user is on its stack. An event loop may have suspended code of the user, which goes on with the
    tensors that it has; and so may a thread that waits, as for another one. Where there are none,
    there is no backward to come.
    """
    files = _stack(thread)
    if any(_computes(file) for file in files):
        return True
    if all(_runs_others(file) for file in files) and not any(map(_is_event_loop, files)):
        return False
    waits = _runs_others(files[0]) or rest.is_seen(thread)
    return not waits or has_tensors()


def runs(frame: int) -> bool:
    """Whether the frame of that id is on this thread's stack. Ids are kept, since a frame would
    keep its variables, and their tensors, alive."""
    caller = sys._getframe() if frame else None
    while caller is not None and id(caller) != frame:
        caller = caller.f_back
    return caller is not None


def _processor_seconds(thread: int) -> float:
    """Of a thread that has not ended; where that is not known, as if it never rested."""
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _stack(thread: int) -> list[str]:
    """The files of its functions, the innermost first; none if it has ended."""
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
    """A file of PyTorch, but not of its loaders, which wait for data."""
    return "torch" in file.split(os.sep) and os.path.join("torch", "utils", "data") not in file


@functools.cache
def _is_event_loop(file: str) -> bool:
    return "asyncio" in file.split(os.sep)
