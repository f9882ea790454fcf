"""The threads that are inside a backward. They write gradients without the GIL, so no other thread
may read `grad` meanwhile, or walk tensors that it finds there: the process would crash."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import torch

from ..._core import stacks
from .patches import Patches

_RUNS: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)


class Backwards:
    """Knows these threads while it watches, including those that were inside before."""

    def __init__(self) -> None:
        self._patches = Patches()
        self.forget()

    def forget(self) -> None:
        """Know of none, as in a forked child, where another thread may have had the lock."""
        self._lock = threading.RLock()
        self._inside: set[int] = set()
        self._before: set[int] = set()  # inside since before it watches

    def watch(self) -> None:
        self._patches.wrap(torch.autograd, "_engine_run_backward", self._counted)
        self._before = _threads_inside()

    def unwatch(self) -> None:
        self._patches.undo()

    def _counted(self, original: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            thread = get_ident()
            if thread in self._inside:  # a backward within a backward
                return original(*arguments, **options)
            try:
                with self._lock:
                    self._inside.add(thread)
                return original(*arguments, **options)
            finally:
                self._inside.discard(thread)

        return run

    @contextlib.contextmanager
    def kept_out(self) -> Iterator[bool]:
        """Keep other threads from beginning a backward during the block. Yield whether no thread is
        inside of one."""
        with self._lock:
            if self._before:
                self._before &= _threads_inside()
            yield not (self._inside | self._before) - {get_ident()}


def _threads_inside() -> set[int]:
    """Return the threads with that function on their stack."""
    runs = _RUNS.__code__
    return {thread for thread, codes in stacks().items() if any(code is runs for code in codes)}
