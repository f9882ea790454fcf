"""Sharing in this process: its session, PyTorch's boundaries, and the words for scripts.

At most one session is current. Explicit iterations (`iterations`, `turn`) take the place of those
that PyTorch's hooks notice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from .session import Session
from .settings import Settings

if TYPE_CHECKING:
    from .torch_boundaries import Boundaries

Batch = TypeVar("Batch")


class _Sharing:
    """A session of this process and the PyTorch boundaries that serve it, once there are any."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._boundaries: Boundaries | None = None
        self._explicit = 0  # how many `iterations` and `turn` blocks are open; hooks are off then

    def attach(self) -> None:
        """PyTorch is there: measure its memory and notice its iterations. Idempotent."""
        if self._boundaries is not None:
            return
        from .torch_boundaries import Boundaries
        from .torch_memory import Memory

        session = self.session
        session.memory = memory = Memory(session.device, session.capacity, session.devices)
        self._boundaries = Boundaries(self.session, memory)
        self._notice()

    def detach(self) -> None:
        if self._boundaries is not None:
            self._boundaries.remove()

    def begin_explicit(self) -> None:
        self._explicit += 1
        self.detach()

    def end_explicit(self) -> None:
        self._explicit -= 1
        if not self._explicit:
            self.session.leave()
            self._notice()

    def cell_ended(self) -> None:
        """A background thread in the middle of an iteration keeps the turn to its own boundary."""
        if self._boundaries is None or self._boundaries.reset():
            self.session.leave()
            self.session.cell_ends()

    def _notice(self) -> None:
        if self._boundaries is not None and not self._explicit and _sharing is self:
            self._boundaries.install()


_sharing: _Sharing | None = None


def current() -> Session | None:
    """The session of this process, or None where sharing is off."""
    return _sharing.session if _sharing is not None else None


def start(settings: Settings | None = None, **options: Any) -> Session:
    """Share: open a session and notice PyTorch's iterations, whenever torch is imported.

    `options` are those of `Session`. Raises GpuShareError; then nothing has changed.
    """
    global _sharing
    stop()
    options.setdefault("name", os.path.basename(sys.argv[0]) or "python")
    session = Session(settings, **options)
    session.open()
    _spare_the_cores(session.device)
    _sharing = _Sharing(session)
    _attach_when_imported()
    return session


def stop() -> None:
    """Sharing off: hooks removed, the place at the broker free. Harmless when it is off."""
    global _sharing
    sharing, _sharing = _sharing, None
    if sharing is not None:
        sharing.detach()
        sharing.session.close()


def cell_begins() -> None:
    """A cell begins: what was paged out since the last one comes back."""
    if _sharing is not None:
        _sharing.session.cell_begins()


def cell_ended() -> None:
    """The end of a cell, however it ended: its iteration is closed and its turn given back."""
    if _sharing is not None:
        _sharing.cell_ended()


@contextmanager
def session(settings: Settings | None = None, **options: Any) -> Iterator[Session]:
    """``with gpushare.session():`` shares within the block; where sharing is on, it is that."""
    if (already := current()) is not None:
        yield already
        return
    from .waiting import TerminalLine

    opened = start(settings, **options)
    opened.on_wait = line = TerminalLine()
    opened.on_trouble = lambda sentence: print(sentence, file=sys.stderr)
    try:
        yield opened
    finally:
        stop()
        line.cell_ended()


def iterations(loader: Iterable[Batch], epochs: int = 1) -> Iterator[Batch]:
    """The batches of `loader`, `epochs` times; the loop's body is one iteration with its boundary.

    Batches are loaded without the turn. The length of `loader`, if it has one, tells the broker
    how much is left.
    """
    with _explicit() as sharing:
        session = sharing.session
        length = len(loader) if isinstance(loader, Sized) else None
        session.declare(None if length is None else length * epochs)
        for _ in range(epochs):
            for batch in loader:
                session.enter()
                session.memory.begin()
                yield batch
                session.memory.end()
                session.boundary()


@contextmanager
def turn() -> Iterator[Session]:
    """``with gpushare.turn():`` holds the turn for the block, for code that is not PyTorch."""
    with _explicit() as sharing:
        sharing.session.enter()
        sharing.session.memory.begin()
        try:
            yield sharing.session
        finally:
            sharing.session.memory.end()
            sharing.session.boundary()


@contextmanager
def _explicit() -> Iterator[_Sharing]:
    """Explicit iterations: hooks stand by, and the turn is back at the end of the block."""
    with session():
        sharing = _sharing
        assert sharing is not None  # `session` has just seen to it
        sharing.begin_explicit()
        try:
            yield sharing
        finally:
            sharing.end_explicit()


def _spare_the_cores(device: str) -> None:
    """Let OpenMP's idle threads sleep: by default they spin on the cores of whoever has the turn.

    OpenMP reads this when torch loads it, so it helps where sharing is on before `import torch`;
    it changes no result, and a value that the user has set stays.
    """
    if device == "host" and "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _attach(torch: Any) -> None:
    if _sharing is not None:
        _sharing.attach()


def _attach_when_imported() -> None:
    """Now, if torch is there; else when it comes, whoever imports it."""
    import wrapt

    if "torch" in sys.modules:
        _attach(sys.modules["torch"])
    elif not _registered:
        _registered.append(True)
        wrapt.register_post_import_hook(_attach, "torch")


_registered: list[bool] = []  # the hook outlives a session; it must not be registered twice


def _forget() -> None:
    """In a forked child: sharing is the parent's."""
    global _sharing
    _sharing = None


os.register_at_fork(after_in_child=_forget)
