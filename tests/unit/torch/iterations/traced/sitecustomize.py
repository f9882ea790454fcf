"""Run by each Python that starts for test_way.py: a broker notes in a file what it calls."""

import os
import sys
from collections.abc import Iterator
from types import FrameType

BROKER = f"{os.sep}jupyter_gpushare{os.sep}broker{os.sep}"


def note(frame: FrameType, event: str, argument: object) -> None:
    """Append the methods on the stack, where one of the broker or a C++ function is called."""
    if event in ("call", "c_call") and BROKER in frame.f_code.co_filename:
        called = [f"C++ {getattr(argument, '__name__', '')}"] if event == "c_call" else []
        line = " > ".join([*reversed([*methods(frame)]), *called])
        os.write(file, f"{line}\n".encode())


def methods(frame: "FrameType | None") -> Iterator[str]:
    while frame is not None:
        if "self" in frame.f_locals:
            yield f"{type(frame.f_locals['self']).__name__}.{frame.f_code.co_name}"
        frame = frame.f_back


if "jupyter_gpushare.broker" in sys.orig_argv:
    file = os.open(os.environ["CALLS_OF_THE_BROKER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sys.setprofile(note)
