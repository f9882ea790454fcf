"""Plain loops with and without sharing, and a plain implementation of turns that keeps a
record."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.iterations.boundaries import Boundaries
from jupyter_gpushare.client.torch.memory import TorchMemory

from ...programs.iterations import Bits, bits_of

Training = Callable[[], tuple[list[float], list[torch.Tensor]]]  # losses and weights


@dataclass
class Turns:
    """Grants every turn at once and records each request, with its thread."""

    events: list[str] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    before_enter: Callable[[], None] = lambda: None
    entering: Any = field(default_factory=threading.RLock)
    waiting: bool = False

    def enter(self) -> None:
        self.before_enter()
        self._note("enter")

    def boundary(self) -> None:
        self._note("boundary")

    def abandon(self) -> None:
        """A `leave` follows, or nothing more."""

    def leave(self) -> None:
        self._note("leave")

    def unless_waiting(self, act: Callable[[], None]) -> bool:
        if not self.waiting:
            with self.entering:
                act()
        return not self.waiting

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.threads.append(threading.get_ident())

    @property
    def boundaries(self) -> int:
        return self.events.count("boundary")

    def is_matched(self) -> bool:
        """Each enter is followed by its boundary; only the last may still be open."""
        inside = [event for event in self.events if event != "leave"]
        return inside == (["enter", "boundary"] * len(inside))[: len(inside)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def counted() -> Iterator[None]:
    """Install the counter, and let no garbage of other tests die in the middle of this one."""
    assert _core.AllocationCounter.install() == ""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextmanager
def tracing(trace: Callable[..., Any]) -> Iterator[None]:
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def noticing(turns: Turns, memory: TorchMemory) -> Iterator[Boundaries]:
    boundaries = Boundaries(turns, memory)
    boundaries.install()
    try:
        yield boundaries
    finally:
        boundaries.remove()


def bytes_of(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def alone(code: str, *arguments: int | str) -> list[str]:
    """Run code in a process of its own, where nothing was installed before; return its output."""
    words = [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def boundaries(turns: Turns) -> Iterator[Boundaries]:
    with noticing(turns, TorchMemory()) as installed:
        yield installed


@pytest.fixture
def shared(turns: Turns) -> Callable[[Training], int]:
    """Run a training without and with sharing, with the same bits as results; return the number of
    boundaries."""

    def run(train: Training) -> int:
        def bits() -> Bits:
            torch.manual_seed(0)
            return bits_of(train())

        gc.collect()  # what other tests left counts as alive, and would die in the middle
        alone = bits()
        with noticing(turns, TorchMemory()):
            together = bits()
        assert together == alone
        assert turns.is_matched()
        return turns.boundaries

    return run
