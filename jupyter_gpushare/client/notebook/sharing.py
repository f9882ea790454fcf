"""Sharing in this process: its session, PyTorch's boundaries, and the functions for scripts.

At most one session is current. Explicit iterations (`iterations`, `turn`) replace those that
PyTorch's hooks notice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BrokerUnavailable, NoRoom
from ...settings import Settings, load
from ...wire import launch
from ...wire.messages import MAX_NAME_LENGTH
from ..checkpoints import checkpoint
from ..end_of_wait import hide_our_frames
from ..options import check, check_loop
from ..session.session import Session
from .cells import Cells
from .overrides import applied

if TYPE_CHECKING:
    from ..torch.iterations.boundaries import Boundaries

Batch = TypeVar("Batch")
STAYS_ON = (
    "sharing stays on: tensors of this notebook are on disk, and the GPU has no room for them yet;"
    " try again later"
)


class _Sharing:
    """A session of this process, and its PyTorch boundaries once torch is imported."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._boundaries: Boundaries | None = None
        # The threads that opened `iterations` and `turn` blocks; the hooks are off meanwhile. It is
        # a list and no number, since a block may end without a lock.
        self._explicit: list[int] = []
        self._leader = 0  # the thread whose explicit iteration is open; others are passengers

    def attach(self) -> None:
        """Measure the memory of the imported PyTorch and notice its iterations. Idempotent."""
        if self._boundaries is not None:
            return
        from ..torch.iterations.boundaries import Boundaries
        from ..torch.memory import TorchMemory
        from ..torch.unpublished import NOTICING, lacks

        session = self.session
        session.memory = memory = TorchMemory(
            session.device,
            session.capacity,
            session.devices,
            lambda: session.page_directory,
            lambda sentence: session.on_trouble(sentence),
            session.page_quotas,
        )
        memory.want_squeeze(session.squeeze)
        memory.leave_room(session.room)
        if lacks(NOTICING):
            return  # `memory.how` says so
        self._boundaries = Boundaries(self.session, memory)
        session.close_if_idle = self._boundaries.close_if_idle
        self._notice()

    def detach(self) -> None:
        if self._boundaries is not None:
            self._boundaries.remove()

    def begin_explicit(self) -> None:
        with self.session.entering:
            self._explicit.append(get_ident())
            self.detach()

    def end_explicit(self) -> None:
        """End a block. If another thread waits for the turn, that thread is in a block of its own,
        so this one is not the last that is open."""
        self._explicit.pop()  # any one: another thread may close a generator
        self.session.unless_waiting(self._end_last_explicit)

    def _end_last_explicit(self) -> None:
        if not self._explicit:
            self.session.leave()
            self._notice()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """An explicit iteration; if one is open, in any thread, the block is a part of it."""
        if self._begin_iteration():
            try:
                yield
            finally:
                self._end_iteration()
        else:
            yield

    def _begin_iteration(self) -> bool:
        with self.session.entering:
            if self._leader:
                return False
            self.session.enter()
            self._leader = get_ident()
            self.session.memory.begin()
            return True

    def _end_iteration(self) -> None:
        with self.session.entering:
            try:
                self.session.memory.end()
                self.session.boundary()
            finally:
                self._leader = 0

    def cell_ended(self, is_last: bool) -> None:
        """Give the turn back, unless other cells run or another thread is inside an iteration. That
        thread keeps the turn until its own boundary, and the keeper notices a thread that reaches
        none. A thread that waits for the turn does not delay the end of the cell."""
        if not self.session.unless_waiting(partial(self._leave, is_last)) and is_last:
            self.session.cell_ends()

    def _leave(self, is_last: bool) -> None:
        if self._has_closed_ours() and is_last:
            self.session.leave()
            self.session.cell_ends()

    def _has_closed_ours(self) -> bool:
        """Close the iteration of this thread, if one is open; return False if it is another
        thread's."""
        is_closed = self._boundaries is None or self._boundaries.reset()
        return is_closed and self._leader in (0, get_ident())

    def _notice(self) -> None:
        if self._boundaries is not None and not self._explicit and _sharing is self:
            self._boundaries.install()


_sharing: _Sharing | None = None
_cells = Cells()


def current() -> Session | None:
    """Return the session of this process, or None if sharing is off."""
    return _sharing.session if _sharing is not None else None


def start(settings: Settings | None = None, **options: Any) -> Session:
    """Share: open a session and notice PyTorch's iterations, whenever torch is imported.

    `options` are those of `Session`. Raises GpuShareError; then nothing has changed.
    """
    global _sharing
    options = {"name": _name_of_script()} | options
    check(options)
    stop()
    session = Session(settings, **options)
    session.open()
    spare_the_cores(session.device)
    hide_our_frames()
    _cells.assume()
    _sharing = _Sharing(session)
    _attach_when_imported()
    return session


def _name_of_script() -> str:
    return os.path.basename(sys.argv[0]).strip()[:MAX_NAME_LENGTH] or "python"


def stop() -> None:
    """End sharing: remove the hooks and free the place at the broker. Idempotent. Raises NoRoom
    where memory is out that a GPU has no room for; then sharing goes on."""
    global _sharing
    if _sharing is not None and not _sharing.session.may_close():
        raise NoRoom(STAYS_ON)
    sharing, _sharing = _sharing, None
    if sharing is not None:
        sharing.detach()
        sharing.session.close()


def cell_begins() -> None:
    """A cell begins: page in what was paged out since the last one."""
    is_first = _cells.begins()
    if _sharing is not None and is_first:
        _sharing.session.cell_begins()


def cell_ended() -> bool:
    """A cell has ended, also with an error: close its iteration and give its turn back. Return
    whether no cell runs any more."""
    is_outermost, is_last = _cells.ends()
    if _sharing is not None and is_outermost:
        _sharing.cell_ended(is_last)
    return is_last


def session(settings: Settings | None = None, **options: Any) -> AbstractContextManager[Session]:
    """``with gpushare.session():`` shares the device within the block.

    The options are those of `Session`; the name of the script is the default name. If sharing is on
    already, the block has that session, `weight` and `priority` hold for the block, and another
    device is refused. Raises InvalidValue for a wrong option at once, and GpuShareError at the
    beginning of the block if the session cannot be opened.
    """
    check(options)
    return _session(settings, options)


@contextmanager
def _session(settings: Settings | None, options: Mapping[str, Any]) -> Iterator[Session]:
    if (already := current()) is not None:
        with applied(already, options):
            yield already
        return
    from .waiting_line import TerminalLine

    opened = start(settings, **options)
    opened.on_wait = line = TerminalLine()
    opened.on_waited = line.finish_wait
    opened.on_trouble = lambda sentence: print(sentence, file=sys.stderr)
    try:
        yield opened
    finally:
        stop()
        line.cell_ended(sys.exc_info()[1])
        for sentence in opened.take_notices():
            print(sentence, file=sys.stderr)


def iterations(loader: Iterable[Batch], epochs: int = 1) -> Iterator[Batch]:
    """The batches of `loader`, `epochs` times; the loop's body is one iteration with its boundary.

    Batches are loaded without the turn. The length of `loader`, if it has one, tells the broker how
    many iterations are left. In a job with a `checkpoint` these are the batches that are not done.
    If sharing is off, this opens a session for the loop. Raises InvalidValue for a wrong argument
    at once, GpuShareError as `session` does, and Cancelled if another user cancels the wait.
    """
    check_loop(loader, epochs)
    return _iterations(loader, epochs)


def _iterations(loader: Iterable[Batch], epochs: int) -> Iterator[Batch]:
    if _is_job_without_broker():
        yield from checkpoint.batches(loader, epochs)[1]
        return
    with _explicit() as sharing:
        left, batches = checkpoint.batches(loader, epochs)
        sharing.session.declare(left)
        try:
            for batch in batches:
                with sharing.iteration():
                    yield batch
        finally:  # `break` leaves the loop, too
            sharing.session.declare(None)


def _is_job_without_broker() -> bool:
    is_job = "GPUSHARE_JOB" in os.environ and current() is None
    return is_job and not job_has_broker(load())


def job_has_broker(settings: Settings) -> bool:
    """Whether a job shares its GPUs. On this machine, start a broker if none runs, as a notebook
    would, so that a notebook that is opened later finds the rank there. On a node of a cluster, use
    the broker that runs there."""
    try:
        launch.connect(settings, start=settings.cluster_engine == "local").close()
    except BrokerUnavailable:
        return False
    return True


@contextmanager
def turn() -> Iterator[Session]:
    """``with gpushare.turn():`` holds the turn for the block, for code that is not PyTorch.

    The block is one iteration. If sharing is off, this opens a session for the block. Raises
    GpuShareError as `session` does, and Cancelled if another user cancels the wait.
    """
    with _explicit() as sharing, sharing.iteration():
        yield sharing.session


@contextmanager
def _explicit() -> Iterator[_Sharing]:
    """A block of explicit iterations: the hooks are off in it, and its end gives the turn back."""
    with session():
        sharing = _sharing
        assert sharing is not None  # `session` has just set it
        sharing.begin_explicit()
        try:
            yield sharing
        finally:
            sharing.end_explicit()


def spare_the_cores(device: str) -> None:
    """Let OpenMP's idle threads sleep: by default they spin on cores that another session uses.

    OpenMP reads this when torch loads it, so it helps if sharing is on before `import torch`. It
    changes no result, and a value that the user has set stays.
    """
    if device == "host" and "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _attach(torch: Any) -> None:
    if _sharing is not None:
        _sharing.attach()


def _attach_when_imported() -> None:
    """Attach to PyTorch now if it is imported, else when some code imports it."""
    import wrapt

    if "torch" in sys.modules:
        _attach(sys.modules["torch"])
    elif not _registered:
        _registered.append(True)
        wrapt.register_post_import_hook(_attach, "torch")


_registered: list[bool] = []  # the hook outlives a session and must not be registered twice


def _forget() -> None:
    """Turn sharing off in a forked child; the session belongs to the parent."""
    global _sharing, _cells
    _sharing, _cells = None, Cells()


os.register_at_fork(after_in_child=_forget)
