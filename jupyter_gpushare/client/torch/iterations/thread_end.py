"""A callback at the end of a thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident


class ThreadEnd:
    """Calls back when the thread ends that has this object in a thread-local variable."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call
        self._thread = get_ident()
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:  # a forked child drops the parent's other threads
            self._call(self._thread)
