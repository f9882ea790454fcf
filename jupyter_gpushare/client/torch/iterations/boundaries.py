"""The beginning and end of PyTorch iterations, found in unmodified code. Import this after torch.

An iteration begins at the first outermost module forward. It ends at a *candidate*: the end of an
optimiser's step, or of `zero_grad`, at which profiling found the fewest bytes alive; or the end of
an outermost forward that records no gradients. The thread that began the iteration owns it; other
threads are passengers, whose events change nothing. Code without modules or without candidates is
never interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .... import _core
from ..patches import Patches
from .forwards import Forwards
from .outermost import OutermostForward
from .profile import BoundaryProfile
from .stacks import Activity, FrameId, id_of, runs
from .thread_end import ThreadEnd


class TurnGiver(Protocol):
    """The interface that gives turns."""

    entering: Any  # a reentrant lock: under it no iteration begins, and no turn is given back

    def unless_waiting(self, act: Callable[[], None]) -> bool:
        """Call `act` with that lock. Return False, without the call, if another thread waits for
        the turn with it; then no iteration is open."""

    def enter(self) -> None:
        """An iteration begins: return when this process holds the turn."""

    def boundary(self) -> None:
        """An iteration ended."""

    def abandon(self) -> None:
        """Note that the open iteration, if there is one, has ended without a boundary."""

    def leave(self) -> None:
        """Give the turn back now."""


class IterationMemory(Protocol):
    """The interface that measures memory, in bytes."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def live(self) -> int: ...

    def of_thread(self) -> int: ...

    def peak(self) -> int: ...

    def survivors(self) -> int: ...

    def may_move(self) -> bool: ...

    @property
    def seconds_to_move(self) -> float: ...

    @property
    def squeeze(self) -> Squeezes: ...


class Squeezes(Protocol):
    """The interface that squeezes what autograd saves."""

    is_active: bool  # in the open iteration

    def forward_begins(self, module: Any) -> None: ...

    def forward_ends(self) -> None: ...

    def forward_left(self) -> None: ...

    def step_begins(self) -> None: ...

    def abandon(self) -> None: ...

    def look_again(self) -> None: ...

    def retire(self) -> None: ...


class _Thread(threading.local):
    """The values of one thread: the step that it is in, and an object that ends with the thread."""

    step: FrameId | None = None  # the frame that runs the outermost step
    end: ThreadEnd | None = None


class Boundaries:
    """Tells `session` where iterations begin and end, and `memory` to measure them.

    At most one is installed in a process.
    """

    def __init__(self, session: TurnGiver, memory: IterationMemory) -> None:
        self._session = session
        self._memory = memory
        # Iterations begin and end under this lock. While one thread waits for the turn, others wait
        # too. The thread that gives the turn back takes the lock before it checks whether an
        # iteration is open, and keeps it until all is done.
        self._entering = session.entering
        self._thread = _Thread()
        self._undo = contextlib.ExitStack()
        self._patches = Patches()
        self._suspended: set[int] = set()  # threads whose iterations were closed while they waited
        self._resumes = Patches()  # while there are any
        self._outermost = OutermostForward(self._forward_begins, self._forward_ended)
        self._start()
        for module in _core.living_objects([torch.nn.Module]):
            _notice_calls(module)  # it may have compiled itself before

    def _start(self) -> None:
        self._inside = False  # an iteration is open
        self._leader = 0  # the thread of the open iteration, or of the last one
        self._activity: Activity | None = None  # of the leader, once another thread looks
        self._recording = False  # a forward with gradients has begun, and no step has ended since
        self._is_done = False  # its last step has ended, and nothing has begun since
        self._profile = BoundaryProfile(self._memory)
        self._forwards = Forwards(self._memory)

    # --- installed or not --------------------------------------------------------------------

    def install(self) -> None:
        """Register the hooks; remove another instance that is installed. Idempotent."""
        global _installed
        if _installed is not self:
            if _installed is not None:
                _installed.remove()
            self._register()
            _installed = self

    def remove(self) -> None:
        """Remove all hooks and close an open iteration. Idempotent.

        This does not wait for a thread that waits for its turn with the lock: that thread has begun
        no iteration, and begins none, since it finds the hooks gone.
        """
        self._unregister()
        self._session.unless_waiting(self._close)

    def forget(self) -> None:
        """Remove all hooks in a forked child, where another thread of the parent may have had the
        lock for good."""
        self._unregister()
        self._close()

    def _unregister(self) -> None:
        global _installed
        if _installed is self:
            _installed = None
        self._undo.close()
        self._patches.undo()
        self._memory.squeeze.retire()
        self._resumes.undo()
        self._suspended.clear()

    def reset(self) -> bool:
        """End a cell: close the iteration that this thread has left open, and restart profiling.

        Return False if another thread is inside an iteration: it needs the turn, and ends the
        iteration at its own boundary, or when the thread ends.
        """
        self._thread.step = None
        with self._entering:
            if self._inside and self._leader != get_ident():
                return False
            if self._inside and not self._recording:
                self._end()  # its step was done, and the cell ended before the next zero_grad
            self._close()
            self._forget_suspended(get_ident())
            self._memory.squeeze.look_again()
        return True

    def close_if_idle(self) -> None:
        """End the open iteration if no thread computes in it, since the turn is wanted. The tensors
        of the iteration leave the lane with the turn."""
        with self._entering:
            if self._inside and self._is_done:
                self._end()  # only its zero_grad is to come
            self._close_if_left(lambda: not _is_in_group() and self._memory.may_move())

    def _close_if_left(self, may_move: Callable[[], bool] = lambda: False) -> None:
        """Close the iteration if its thread has ended without a boundary, or does something
        else."""
        if not self._inside:
            return
        # A thread other than the main one ends only after `_thread_ended` has had the lock.
        self._activity = self._activity or Activity(self._leader)
        if not self._activity.may_compute(self._has_tensors, may_move):
            self._suspend()

    def _suspend(self) -> None:
        """Close the iteration. If its thread goes on with a backward or a step, it begins another
        iteration and waits for a turn."""
        leader = self._leader
        self._close()
        if not self._suspended:
            for name in ("backward", "grad"):
                self._resumes.wrap(torch.autograd, name, self._resuming)
        self._suspended.add(leader)

    def _forget_suspended(self, thread: int) -> None:
        self._suspended.discard(thread)
        if not self._suspended:
            self._resumes.undo()

    def _has_tensors(self) -> bool:
        return self._memory.survivors() > 0

    def _close(self) -> None:
        if self._inside:
            self._memory.squeeze.abandon()
            self._memory.end()
            self._session.abandon()
        self._start()
        self._outermost.unhook_end()
        self._outermost.end()

    def _register(self) -> None:
        self._outermost.register()
        self._undo.callback(self._outermost.remove)
        self._undo.callback(register_optimizer_step_pre_hook(self._step_begins).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._step_ended).remove)
        self._patches.wrap(torch.optim.Optimizer, "zero_grad", self._noticing_zero_grad)
        self._patches.wrap(torch.nn.Module, "zero_grad", self._noticing_zero_grad)
        self._patches.wrap(torch.nn.Module, "compile", self._noticing_compile)
        self._patches.wrap(
            torch.nn.modules.module, "_has_any_global_hook", self._outermost.overlooked
        )

    # --- an iteration ------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Return whether this thread is inside an iteration; begin one if no thread is."""
        __tracebackhide__ = True
        with self._entering:
            if self._inside and self._leader == get_ident():
                self._is_done = False
                return True
            self._close_if_left()
            if self._inside:
                return False  # a passenger
            self._session.enter()
            if _installed is not self:  # sharing was turned off meanwhile
                self._session.abandon()
                return False
            self._lead()
        return True

    def _lead(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._thread.end = self._thread.end or ThreadEnd(self._thread_ended)
        self._leader = get_ident()
        self._activity = None
        if self._suspended:
            self._forget_suspended(self._leader)
        self._inside = True
        self._memory.begin()

    def _resume(self) -> None:
        """Begin an iteration if the one of this thread was closed while the thread waited."""
        __tracebackhide__ = True
        if get_ident() in self._suspended and not _is_captured() and self._is_ours():
            self._recording = True

    def _end(self) -> None:
        """End the iteration under the lock, so that no other thread enters before the turn is given
        back."""
        __tracebackhide__ = True
        with self._entering:
            if not self._inside:
                return
            try:
                self._memory.end()
                self._session.boundary()
            finally:
                self._inside = self._recording = self._is_done = False

    def _thread_ended(self, thread: int) -> None:
        if _installed is self:
            self._forget_suspended(thread)
            self._session.unless_waiting(functools.partial(self._leave_after, thread))

    def _leave_after(self, thread: int) -> None:
        """Give the turn back after this thread has ended, unless another one computes in it."""
        if self._inside and self._leader == thread:
            self._close()
        if not self._inside:
            self._session.leave()

    # --- forwards ----------------------------------------------------------------------------

    def _forward_begins(self, module: Any, args: Any) -> None:
        """The global hook. It sees outermost forwards only, since inside a forward it is
        removed."""
        __tracebackhide__ = True
        if torch.compiler.is_compiling() or _is_captured():
            return
        if not self._is_ours() or not self._note_forward():
            return
        is_squeezed = self._memory.squeeze.is_active
        if self._recording and not module._modules and not is_squeezed:
            return  # its end does not matter, and it has no modules inside
        frame = sys._getframe(1)
        self._outermost.begin(id_of(frame))
        self._outermost.hook_end_of(module)
        if is_squeezed:
            self._memory.squeeze.forward_begins(module)
            self._outermost.watch(frame, functools.partial(self._forward_left, id_of(frame)))

    def _note_forward(self) -> bool:
        """Note that an outermost forward begins. If it is inference without candidates, end the
        iteration and begin the next one.

        Return False if another thread has entered first: then this one is a passenger.
        """
        __tracebackhide__ = True
        if not torch.is_grad_enabled():
            return True
        if self._forwards.note():
            self._end()
            if not self._is_ours():
                return False
        self._recording = True
        return True

    def _forward_ended(self, frame: FrameId) -> None:
        """The hook at the end, called from the frame that began the forward.

        If the forward raised, another frame calls it. Then torch is iterating over the module's
        hooks, and this one must stay registered a little longer.
        """
        __tracebackhide__ = True
        if self._leader != get_ident():
            return  # a passenger runs the same module
        returned = frame == self._outermost.frame
        if not returned and (not self._outermost.frame or runs(self._outermost.frame)):
            return  # the forward has ended already, or the module calls itself
        self._outermost.end()
        if returned:
            self._outermost.unhook_end()
        if self._memory.squeeze.is_active:
            self._memory.squeeze.forward_ends()
        if self._inside and not self._recording:
            self._end()

    def _forward_left(self, frame: FrameId) -> None:
        """The frame of a forward has ended, perhaps by an interrupt, after which torch calls no
        hook. Its id is not looked for on the stack, since a later frame may have got it. After an
        interrupt in here this is called again."""
        if self._leader != get_ident():  # meanwhile another thread has turned sharing off
            self._memory.squeeze.forward_left()
            return
        if self._outermost.frame == frame:
            self._memory.squeeze.forward_left()
            self._outermost.end()
        if not self._outermost.frame:
            self._outermost.unhook_end()

    # --- candidates --------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        __tracebackhide__ = True
        if not torch.compiler.is_compiling() and not runs(self._thread.step):
            if self._suspended:
                self._resume()
            if self._is_done and self._leader == get_ident():
                with self._entering:
                    self._is_done = False
            self._thread.step = id_of(sys._getframe(1))
            if self._memory.squeeze.is_active and self._leader == get_ident():
                self._memory.squeeze.step_begins()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        __tracebackhide__ = True
        if not torch.compiler.is_compiling() and self._thread.step == id_of(sys._getframe(1)):
            self._thread.step = None
            if self._ends_at("step", optimizer):
                self._end()

    def _ends_at(self, kind: str, whose: Any) -> bool:
        """Note a candidate of this thread; return whether its iteration ends there."""
        if self._leader != get_ident() or self._outermost.is_running():
            return False
        is_boundary = self._profile.is_boundary((kind, id(whose)))
        self._forwards.forget()
        if kind == "step":
            self._recording = False
            self._is_done = self._inside and self._profile.is_last_step((kind, id(whose)))
        return is_boundary and self._inside and not _is_captured()

    # --- wrappers ----------------------------------------------------------------------------

    def _noticing_zero_grad(self, original: Any) -> Any:
        def zero_grad(whose: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            result = original(whose, *args, **kwargs)
            if torch.compiler.is_compiling() or runs(self._thread.step):
                return result
            if self._ends_at("zero_grad", whose):
                self._end()
            return result

        return zero_grad

    def _resuming(self, original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not torch.compiler.is_compiling():
                self._resume()
            return original(*args, **kwargs)

        return run

    def _noticing_compile(self, original: Any) -> Any:
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            _notice_calls(module)

        return compile

    def run_compiled(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Run the call of a module that compiled itself, since its hooks are compiled away."""
        __tracebackhide__ = True
        frame = id_of(sys._getframe())
        if not self._compiled_begins(frame):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            self._forward_ended(frame)

    def _compiled_begins(self, frame: FrameId) -> bool:
        __tracebackhide__ = True
        if self._outermost.frame or _is_captured():
            return False
        if not self._is_ours() or not self._note_forward():
            return False
        self._outermost.begin(frame)
        return True


def _notice_calls(module: torch.nn.Module) -> None:
    """Wrap the call of a module that compiled itself. The wrapper stays when sharing ends, and a
    copy of the module has no such call. `vars` runs no code of the module's class."""
    call = vars(module).get("_compiled_call_impl")
    if call is not None and getattr(call, "__module__", "") != __name__:
        vars(module)["_compiled_call_impl"] = _noticing(call)


def _noticing(compiled: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling() or (boundaries := _installed) is None:
            return compiled(*args, **kwargs)
        return boundaries.run_compiled(compiled, args, kwargs)

    return call


def _is_captured() -> bool:
    """Whether work is being recorded into a CUDA graph, during which no code may wait or
    measure."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def _is_in_group() -> bool:
    """Whether other processes may compute in the iterations of this one, and write to their tensors
    by system calls."""
    group = torch.distributed
    return bool(group.is_available() and group.is_initialized() and group.get_world_size() > 1)


_installed: Boundaries | None = None


def _forget_in_child() -> None:
    """Remove the hooks in a forked child, such as a worker of a DataLoader, which takes no
    turns."""
    if _installed is not None:
        _installed.forget()


os.register_at_fork(after_in_child=_forget_in_child)
