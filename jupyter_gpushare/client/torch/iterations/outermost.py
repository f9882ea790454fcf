"""The outermost module forward that runs, and the hooks that find its beginning and end."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from ...._core import keeps_interrupts
from .stacks import FrameId, id_of, runs

_watches: dict[int, Any] = {}  # weak references to what ends with a frame; they outlive sharing


class _ForwardEnd:
    """The hook at the end of a forward; it is on the module only while that forward runs."""

    def __init__(self, call: Callable[[FrameId], None]) -> None:
        self._call = call

    def __call__(self, module: Any, args: Any, result: Any) -> None:
        self._call(id_of(sys._getframe(1)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a model that is copied or saved during a forward a hook that does nothing."""
        return functools.partial, (sys.audit, __name__)


class OutermostForward:
    """The outermost forward; `frame` is the one that runs it, or None if none runs.

    The global hook is registered only while no module forward runs in an open iteration, so modules
    inside modules cost nothing. The hook at the end is on a module only while its forward runs.
    """

    def __init__(
        self, begins: Callable[[Any, Any], None], ended: Callable[[FrameId], None]
    ) -> None:
        """`begins` is the global hook; `ended` gets the frame that calls it."""
        self._begins = begins
        self._end = _ForwardEnd(ended)
        self._handle: Any = None  # handle of the global hook, while it is registered
        self._global_hooks: dict[int, Any] = {}  # torch's own
        self._hook_id = 0  # unique among the hooks of this process
        self._hooked: Any = None  # the module that has the hook at the end
        self.frame: FrameId | None = None

    def register(self) -> None:
        self._handle = handle = register_module_forward_pre_hook(self._begins)
        self._global_hooks, self._hook_id = handle.hooks_dict_ref(), handle.id

    def remove(self) -> None:
        handle, self._handle = self._handle, None
        handle.remove()

    def begin(self, frame: FrameId) -> None:
        """Note that an outermost forward begins in that frame."""
        self.unhook_end()
        self.frame = frame
        self._global_hooks.pop(self._hook_id, None)

    def end(self) -> None:
        """Note that no forward runs. The hook is registered first: after an interrupt between the
        two steps, forwards have to be noticed."""
        if self._handle is not None:
            self._global_hooks[self._hook_id] = self._begins
        self.frame = None

    def is_running(self) -> bool:
        if self.frame and not runs(self.frame):  # after an interrupt torch calls no hook
            self.unhook_end()
            self.end()
        return self.frame is not None

    def hook_end_of(self, module: Any) -> None:
        """Do what register_forward_hook(..., always_call=True) does, at a tenth of its cost;
        scripted modules do not have that function. The caller, torch's `_call_impl`, reads both of
        these attributes in any case.
        """
        self._hooked = module
        module._forward_hooks[self._hook_id] = self._end
        module._forward_hooks_always_called[self._hook_id] = True

    def unhook_end(self) -> None:
        if self._hooked is not None:
            self._hooked._forward_hooks.pop(self._hook_id, None)
            self._hooked._forward_hooks_always_called.pop(self._hook_id, None)
            self._hooked = None

    def watch(self, frame: FrameType, left: Callable[[], None]) -> None:
        """Call `left` once that frame of a forward has ended, however it ends: after an interrupt
        torch calls no hook. A frame has no weak references, but a set that each forward makes has.
        So the arguments stay as users and their hooks expect them. `left` may be called twice."""

        def ended(watch: Any) -> None:
            left()
            _watches.pop(id(watch), None)

        ends_with_it = frame.f_locals.get("called_always_called_hooks")
        if ends_with_it is not None:
            watch = weakref.ref(ends_with_it, keeps_interrupts(ended))
            _watches[id(watch)] = watch

    def overlooked(self, original: Any) -> Any:
        """Hide the global hook from compiled modules, which warn of such hooks; the hook is removed
        when they run."""

        def has_any_global_hook() -> Any:
            hook = self._global_hooks.pop(self._hook_id, None)
            try:
                return original()
            finally:
                if hook is not None:
                    self._global_hooks[self._hook_id] = hook

        return has_any_global_hook
