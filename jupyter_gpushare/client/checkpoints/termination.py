"""SIGTERM, which a batch system sends to each process of a job that it ends: the job saves first.

A library that finds a handler in Python leaves the signal alone. Without one, Lightning would end
its training.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import wrapt

from ..._core import obey_own_group

WORKERS, BEGIN = "torch.utils.data._utils.signal_handling", "_set_worker_signal_handlers"


def bear_if_told() -> None:
    """Bear SIGTERM if the launcher has started this process with the signal ignored, so that the
    process can save."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        bear()


def bear() -> None:
    """Let SIGTERM end this process, and workers that PyTorch forks from it, only if the signal
    comes from their own process group. A handler of the user stays. Programs that this process
    starts end by the signal as usual."""
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN):
        return
    with suppress(ValueError):  # another thread than the main one
        signal.signal(signal.SIGTERM, end)
    obey_own_group()
    wrapt.register_post_import_hook(let_workers_bear, WORKERS)


def end(number: int, _: object) -> None:
    """Do what the signal does without a handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def let_workers_bear(workers: Any) -> None:
    """Let a worker bear SIGTERM after PyTorch has set its handler, by which it ends quietly if the
    process that forked it ends it."""

    def bears(begin: Callable[..., None], _: object, given: Any, named: Any) -> None:
        begin(*given, **named)
        obey_own_group()

    if hasattr(workers, BEGIN):
        wrapt.wrap_function_wrapper(workers, BEGIN, bears)
