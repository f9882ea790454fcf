"""What a thread does, as far as its stack shows."""

from __future__ import annotations

import functools
import os
import sys

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# Packages whose event loops and pools run user code, and compute nothing by themselves.
_RUNNERS = ("anyio", "ipykernel", "ipykernel_launcher.py", "tornado", "traitlets", "zmq")


def may_compute(thread: int, has_tensors: bool) -> bool:
    """Whether a thread may compute in the iteration that it has begun; `has_tensors` tells whether
    something of that iteration is alive.

    It does not if it has ended, or has come back to the loop of its pool or server: nothing of its
    user is on its stack. An event loop may have suspended code of the user, which goes on with the
    tensors that it has; and so may a thread that waits, as for another one.
    """
    files = _stack(thread)
    if any(_is_torch(file) for file in files):
        return True
    if all(_runs_others(file) for file in files) and not any(map(_is_event_loop, files)):
        return False
    return has_tensors or not _runs_others(files[0])


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
def _is_torch(file: str) -> bool:
    return "torch" in file.split(os.sep)


@functools.cache
def _is_event_loop(file: str) -> bool:
    return "asyncio" in file.split(os.sep)
