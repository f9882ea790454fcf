"""Root may read files that no other user could; the processes of the fault matrix give this right
up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522  # of Linux's capset: two words each of effective, permitted, inheritable
DROP_FROM_BOUNDS = 24  # of prctl
OVERRIDING = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

libc = ctypes.CDLL(None, use_errno=True)
Words = ctypes.c_uint32 * 6


def give_up_for_good() -> None:
    """Give the capabilities up, for this process and all its future children. Has no effect without
    such capabilities."""
    for capability in OVERRIDING:
        libc.prctl(DROP_FROM_BOUNDS, capability, 0, 0, 0)
    _set(_without(_get()))


@contextmanager
def given_up() -> Iterator[None]:
    """Give the privileges up within the block, for this thread and the threads that it starts."""
    before = _get()
    _set(_without(before))
    yield
    _set(before)


def _without(words: list[int]) -> list[int]:
    kept = ~sum(1 << capability for capability in OVERRIDING)
    return [words[0] & kept, *words[1:]]


def _get() -> list[int]:
    words = Words()
    _call(libc.capget, words)
    return list(words)


def _set(words: list[int]) -> None:
    _call(libc.capset, Words(*words))


def _call(function: ctypes._NamedFuncPointer, words: ctypes.Array[ctypes.c_uint32]) -> None:
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    if function(header, words) != 0:
        raise OSError(ctypes.get_errno(), function.__name__)
