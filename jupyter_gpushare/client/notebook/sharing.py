"""Sharing in this process: its session, PyTorch's boundaries, and the functions for scripts.

At most one session is current. Explicit iterations (`iterations`, `turn`) replace those that
PyTorch's hooks notice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BrokerUnavailable, NoRoom
from ...settings import Settings, load
from ...wire import launch
from ..checkpoints import checkpoint
from ..end_of_wait import hide_our_frames
from ..options import check, check_loop, name_from
from ..session.session import Session
from .cells import Cells
from .overrides import applied

if TYPE_CHECKING:
    from ..torch.iterations.boundaries import Boundaries
    from .waiting_line import WaitingLine

Batch = TypeVar("Batch")
STAYS_ON = (
    "sharing stays on: tensors of this notebook are on disk, and the GPU has no room for them yet;"
    " try again later"
)


class _Block:
    """A loop over `iterations`, or the block of a `turn`."""

    def __init__(self) -> None:
        self.thread = get_ident()  # that has begun its last iteration


class _Sharing:
    """A session of this process, and its PyTorch boundaries once torch is imported."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.line: WaitingLine | None = None  # of a session that a block has opened
        self.users: list[object] = []  # the blocks, in any thread; that session ends with the last
        self._boundaries: Boundaries | None = None
        self._explicit: list[_Block] = []  # those that are open; the hooks are off meanwhile
        self._leader: _Block | None = None  # its iteration is open; others are passengers
        self._declarer: _Block | None = None  # has told how many iterations are left

    @property
    def is_unused(self) -> bool:
        """Whether a block has opened this session, and the last of its users has ended."""
        return self.line is not None and not self.users

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

    def begin_explicit(self, block: _Block) -> None:
        with self.session.entering:
            if block not in self._explicit:
                self._explicit.append(block)
                self.detach()

    def end_explicit(self, block: _Block) -> None:
        """End a block, unless the end of a cell has ended it. If another thread waits for the turn,
        that thread is in a block of its own, so this one is not the last that is open."""
        if self._drop(block):
            self.session.unless_waiting(self._end_last_explicit)

    def _drop(self, block: _Block) -> bool:
        """Note, without a lock, that a block has ended. Return whether it was open."""
        with suppress(ValueError):
            self._explicit.remove(block)
            return True
        return False

    def _end_last_explicit(self) -> None:
        if not self._explicit:
            self.session.leave()
            self._notice()

    def declare(self, block: _Block, left: int | None) -> None:
        self._declarer = block
        self.session.declare(left)

    def end_declared(self, block: _Block) -> None:
        """The number that this loop has declared holds no longer, if no later loop has declared
        another one."""
        if self._declarer is block:
            self.session.declare(None)
            self._declarer = None

    @contextmanager
    def iteration(self, block: _Block) -> Iterator[None]:
        """An explicit iteration; if one is open, in any thread, this one is a part of it."""
        try:
            self._begin_iteration(block)
            yield
        finally:
            self._end_iteration(block)

    def _begin_iteration(self, block: _Block) -> None:
        with self.session.entering:
            block.thread = get_ident()
            self.begin_explicit(block)  # the cell in which it began may have ended
            if self._leader is not None:
                return
            try:
                self.session.enter()
                self.session.memory.begin()
                self._leader = block
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        self.session.memory.end()
        self.session.abandon()
        self._leader = None

    def _end_iteration(self, block: _Block) -> None:
        if self._leader is not block:  # a passenger, or the end of a cell has closed it
            return
        with self.session.entering:
            try:
                self.session.memory.end()
                self.session.boundary()
            finally:
                self._leader = None

    def cell_ended(self, is_last: bool) -> None:
        """Give the turn back, unless other cells run or another thread is inside an iteration. That
        thread keeps the turn until its own boundary, and the keeper notices a thread that reaches
        none. A thread that waits for the turn does not delay the end of the cell."""
        for block in self._blocks_of_thread():
            self.end_declared(block)
            self._drop(block)
        if not self.session.unless_waiting(partial(self._leave, is_last)) and is_last:
            self.session.cell_ends()

    def _leave(self, is_last: bool) -> None:
        if self._has_closed_ours() and is_last:
            self.session.leave()
            self.session.cell_ends()

    def _blocks_of_thread(self) -> list[_Block]:
        """The blocks that this thread has left open: a variable or a traceback may keep a loop that
        was left by `break` or an error."""
        return [block for block in self._explicit if block.thread == get_ident()]

    def _has_closed_ours(self) -> bool:
        """Close the iteration of this thread, if one is open; return False if it is another
        thread's."""
        is_closed = self._boundaries is None or self._boundaries.reset()
        if self._leader is not None and self._leader.thread == get_ident():
            self._abandon()
        self._notice()
        return is_closed and self._leader is None

    def _notice(self) -> None:
        if self._boundaries is not None and not self._explicit and _sharing is self:
            self._boundaries.install()


_sharing: _Sharing | None = None
_cells = Cells()
_using = RLock()  # a block begins or ends; the end of a session is outside of it


def current() -> Session | None:
    """Return the session of this process, or None if sharing is off."""
    return _sharing.session if _sharing is not None else None


def start(settings: Settings | None = None, **options: Any) -> Session:
    """Share: open a session and notice PyTorch's iterations, whenever torch is imported.

    `options` are those of `Session`. Raises GpuShareError; then nothing has changed.
    """
    return _start(settings, options).session


def _start(settings: Settings | None, options: Mapping[str, Any]) -> _Sharing:
    global _sharing
    options = {"name": name_from(sys.argv[0]) or "python", **options}
    check(options)
    stop()
    sharing = _Sharing(Session(settings, **options))
    try:
        sharing.session.open()
        spare_the_cores(sharing.session.device)
        hide_our_frames()
        _cells.assume()
        _sharing = sharing
        _attach_when_imported()
    except BaseException:
        _end(sharing)
        raise
    return sharing


def stop() -> None:
    """End sharing: remove the hooks and free the place at the broker. Idempotent. Raises NoRoom
    where memory is out that a GPU has no room for; then sharing goes on."""
    if _sharing is not None:
        _end(_sharing)


def _end(sharing: _Sharing) -> None:
    """End this sharing, whether it is current or has not begun."""
    global _sharing
    if not sharing.session.may_close():
        raise NoRoom(STAYS_ON)
    if _sharing is sharing:
        _sharing = None
    _cells.assume_none()
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
    with _shared(settings, options) as sharing:
        yield sharing.session


@contextmanager
def _shared(settings: Settings | None, options: Mapping[str, Any]) -> Iterator[_Sharing]:
    """Share within a block, in the current session, or in one that ends with its last block."""
    user = object()
    with _using:
        already = None if _sharing is None or _sharing.is_unused else _sharing
        sharing = already or _open(settings, options)
        sharing.users.append(user)
    try:
        with applied(sharing.session, options if already else {}):
            yield sharing
    finally:
        with _using:
            sharing.users.remove(user)
            is_last = _sharing is sharing and sharing.is_unused
        if is_last:
            _close(sharing)


def _open(settings: Settings | None, options: Mapping[str, Any]) -> _Sharing:
    from .waiting_line import TerminalLine

    sharing = _start(settings, options)
    session = sharing.session
    session.on_wait = sharing.line = line = TerminalLine()
    session.on_waited = line.finish_wait
    session.on_trouble = lambda sentence: print(sentence, file=sys.stderr)
    return sharing


def _close(sharing: _Sharing) -> None:
    _end(sharing)
    if sharing.line is not None:
        sharing.line.cell_ended(sys.exc_info()[1])
    for sentence in sharing.session.take_notices():
        print(sentence, file=sys.stderr)


def iterations(loader: Iterable[Batch], epochs: int = 1) -> Iterator[Batch]:
    """The batches of `loader`, `epochs` times; the loop's body is one iteration with its boundary.

    Batches are loaded without the turn. The length of `loader`, if it has one, tells the broker how
    many iterations are left. In a job with a `checkpoint` these are the batches that are not done.
    A second loop over the result begins with the first batch again. If sharing is off, this opens a
    session for the loop. Raises InvalidValue for a wrong argument at once, GpuShareError as
    `session` does, and Cancelled if another user cancels the wait.
    """
    check_loop(loader, epochs)
    return _Loop(loader, epochs)


class _Loop(Iterator[Batch]):
    """The batches of a loop. Only the `for` loop has the generator, which ends with it, even where
    something else, such as a progress bar, keeps this object."""

    def __init__(self, loader: Iterable[Batch], epochs: int) -> None:
        self._given = loader, epochs
        self._begun: Iterator[Batch] | None = None  # by `next`

    def __iter__(self) -> Iterator[Batch]:
        return self._begun or _iterations(*self._given)

    def __next__(self) -> Batch:
        self._begun = iter(self)
        return next(self._begun)


def _iterations(loader: Iterable[Batch], epochs: int) -> Iterator[Batch]:
    if _is_job_without_broker():
        yield from checkpoint.batches(loader, epochs)[1]
        return
    block = _Block()
    with _explicit(block) as sharing:
        left, batches = checkpoint.batches(loader, epochs)
        sharing.declare(block, left)
        try:
            for batch in batches:
                with sharing.iteration(block):
                    yield batch
        finally:  # `break` leaves the loop, too
            sharing.end_declared(block)


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
    block = _Block()
    with _explicit(block) as sharing, sharing.iteration(block):
        yield sharing.session


@contextmanager
def _explicit(block: _Block) -> Iterator[_Sharing]:
    """A block of explicit iterations: the hooks are off in it, and its end gives the turn back."""
    with _shared(None, {}) as sharing:
        try:
            sharing.begin_explicit(block)
            yield sharing
        finally:
            sharing.end_explicit(block)


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
    global _sharing, _cells, _using
    _sharing, _cells, _using = None, Cells(), RLock()


os.register_at_fork(after_in_child=_forget)
