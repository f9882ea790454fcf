"""The activity of a thread, as far as its stack and its processor time show it."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple

from ...._core import stacks

LOOK_SECONDS = 0.09  # the least time between two looks at a thread; the keeper makes 20 a second
# A share of the time. A thread that polls uses less of a processor; a thread that computes gets
# more even on the busiest machine.
RESTING_SHARE = 0.05

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# Event loops and pools of these packages run user code, and compute nothing by themselves.
_RUNNERS = ("anyio", "ipykernel", "ipykernel_launcher.py", "tornado", "traitlets", "zmq")
# Folders of PyTorch whose code waits for data, or for processes that it has started.
_WAITING = (
    ("utils", "data"),
    ("multiprocessing",),
    ("distributed", "launcher"),
    ("distributed", "elastic"),
)


class ClockRest:
    """Detects that a clock of processor time hardly advances."""

    def __init__(self, used: Callable[[], float]) -> None:
        self._used = used
        self._look: tuple[float, float] | None = None  # time, and processor seconds used by then

    def is_seen(self) -> bool:
        """Return whether hardly any processor time was used since an earlier look. A thread that
        waits for a GPU may look the same."""
        now, used = time.monotonic(), self._used()
        since, used_before = self._look or (now, used)
        is_too_soon = now - since < LOOK_SECONDS
        self._look = (since, used_before) if is_too_soon else (now, used)
        return not is_too_soon and used - used_before < RESTING_SHARE * (now - since)


class Activity:
    """The activity of the thread that has begun the open iteration, while it is alive."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._rest = ClockRest(lambda: _processor_seconds(thread))
        self._rest_of_all = ClockRest(time.process_time)

    def may_compute(self, has_tensors: Callable[[], bool], may_move: Callable[[], bool]) -> bool:
        """Return whether the thread may compute in the iteration. `has_tensors` returns whether
        tensors of that iteration are alive, and `may_move` whether they may leave the lane.

        The thread computes no more if it has ended, or has returned to the loop of its pool or
        server: then no user code is on its stack. But an event loop may have suspended user code,
        which will continue with its tensors. So will a thread that waits, for example for another
        thread. If no tensors are alive, no backward follows. If some are alive, all threads have to
        rest, since any of them may be at work with these tensors.
        """
        files = [code.co_filename for code in stacks().get(self._thread, [])]
        if any(_computes(file) for file in files):
            return True
        if all(_runs_others(file) for file in files) and not any(map(_is_event_loop, files)):
            return False
        rests, all_rest = self._rest.is_seen(), self._rest_of_all.is_seen()
        if not has_tensors():
            return not (rests or _runs_others(files[0]))
        return not (all_rest and may_move())


class FrameId(NamedTuple):
    """Tells a frame without keeping it: a frame would keep its variables, and their tensors, alive.

    The number alone is not enough. After an interrupt in a forward, the next frame with that number
    may be that of a whole cell, which would look like the forward while the cell runs.
    """

    number: int
    code: CodeType


def id_of(frame: FrameType) -> FrameId:
    return FrameId(id(frame), frame.f_code)


def runs(frame: FrameId | None) -> bool:
    """Return whether a frame is on this thread's stack."""
    caller = sys._getframe() if frame else None
    while caller is not None and id_of(caller) != frame:
        caller = caller.f_back
    return caller is not None


def _processor_seconds(thread: int) -> float:
    """Return the processor seconds of a thread that has not ended. Off Linux, return a clock that
    makes the thread look as if it never rested."""
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


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
    """Whether the file belongs to PyTorch, except to what waits for data or for processes."""
    waits = any(os.path.join("torch", *folder) in file for folder in _WAITING)
    return "torch" in file.split(os.sep) and not waits


@functools.cache
def _is_event_loop(file: str) -> bool:
    return "asyncio" in file.split(os.sep)
