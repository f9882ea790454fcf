"""The hooks on saved tensors, which autograd calls in the outermost forwards of the iteration."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from ..patches import Patches
from ..storages.tensors import storage_of
from . import aside
from .aside import top_hooks, top_mode, unseen
from .cache import Cache
from .gradients import Gradients
from .kinds import SaveEvent
from .profile import NeedProfile
from .recompute.entries import Entry, Handle, Plain, Reference, is_exposed, is_plain
from .recompute.recorder import RecipeRecorder

LEAST = 16 << 10  # bytes; a smaller storage stays
Packed = Handle | Plain
_WITHOUT_TORCH_FUNCTION = torch._C.DisableTorchFunction  # looked up once: these run for each tensor
_is_inference = torch.is_inference_mode_enabled
_is_functorch_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
_RUNS_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


class Hooks:
    """The hooks of one process. `begin` and `end` are called by the thread of the iteration."""

    def __init__(self, cache: Cache, profile: NeedProfile, gradients: Gradients) -> None:
        self._cache, self._profile, self._gradients = cache, profile, gradients
        self._recorder = RecipeRecorder(cache)
        self._patches = Patches()
        self._threads: set[int] = set()  # those that have the hooks
        self._spared = 0  # a thread without them, while autograd saves tensors themselves
        self._for_user: set[int] = set()  # storages that functions of the user save, by address

    # --- a forward ---------------------------------------------------------------------------

    def begin(self, module: torch.nn.Module) -> str:
        """Hook an outermost forward. Return an empty string, or why it stays as it is."""
        self.end()  # a forward that was interrupted has left them
        if not torch.is_grad_enabled():
            return ""
        if reason := aside.reason(module):
            return reason
        self._gradients.expect(module)
        self._threads.add(get_ident())
        self._stand_aside()
        self._push()
        if self._cache.takes_recipes and not _has_tangents():
            self._recorder.__enter__()
        return ""

    def end(self) -> None:
        """Remove the hooks of this thread; do nothing if they are removed already, other hooks lie
        over them, or only another thread has some, which it removes when its forward ends."""
        own = {get_ident()}
        if self._threads and not self._threads & own:
            return
        with unseen():
            self._stop_recording()
        if self._is_on_top():
            self._pop()
        if self._threads <= own:
            self._undo()
        self._threads -= own

    def _undo(self) -> None:
        self._patches.undo()
        self._for_user.clear()

    def forget(self) -> None:
        """Leave PyTorch as it was in a forked child, which has no other threads."""
        self._threads &= {get_ident()}
        if not self._threads:
            self._undo()

    def end_left(self) -> None:
        """Remove the hooks of this thread at any moment, except in the middle of an operation,
        which needs its modes."""
        if get_ident() not in self._threads:
            return
        frame = sys._getframe()
        while (caller := frame.f_back) is not None and frame.f_code is not Hooks.pack.__code__:
            frame = caller
        if frame.f_code is not Hooks.pack.__code__:
            self.end()

    def _stop_recording(self) -> None:
        if top_mode() is self._recorder:
            self._recorder.__exit__(None, None, None)
        self._recorder.forget()
        self._cache.open_reachable()

    def _is_on_top(self) -> bool:
        top = top_hooks()
        return top is not None and top[0] == self.pack

    def _push(self) -> None:
        torch._C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)

    def _pop(self) -> None:
        torch._C._autograd._pop_saved_tensors_default_hooks()

    def _stand_aside(self) -> None:
        """Remove our hooks and modes while code runs that they would disturb: torch.func refuses to
        run under hooks of saved tensors, and formulas of derivatives round differently under a
        mode."""
        autograd = torch.autograd
        self._patches.wrap(autograd.graph, "disable_saved_tensors_hooks", self._away)
        self._patches.wrap(autograd, "_engine_run_backward", self._unrecorded)
        self._patches.wrap(autograd.forward_ad, "enter_dual_level", self._unrecorded_from_now_on)
        self._patches.wrap(autograd.function.FunctionCtx, "save_for_backward", self._noting_saves)
        functions = autograd.function._SingleLevelFunction  # also of those that keep `apply`
        self._patches.put(functions, "apply", classmethod(self._hooking_again(functions)))

    def _unrecorded(self, original: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            if top_mode() is not self._recorder:
                return original(*arguments, **options)
            self._stop_recording()
            try:
                return original(*arguments, **options)
            finally:
                self._recorder.__enter__()

        return run

    def _unrecorded_from_now_on(self, original: Any) -> Any:
        def enter(*arguments: Any, **options: Any) -> Any:
            if top_mode() is self._recorder:
                self._stop_recording()
            return original(*arguments, **options)

        return enter

    def _noting_saves(self, original: Any) -> Any:
        """Note what a function of the user saves, since its backward gets that and may change
        it. Autograd saves all of it without the hooks if a copy of one would not do."""

        def save(context: Any, *tensors: Any) -> Any:
            for storage in map(storage_of, tensors):
                if storage is not None:
                    self._for_user.add(storage._cdata)
                    self._cache.open(storage)
            if any(map(_is_more_than_bytes, tensors)) and self._is_on_top():
                self._pop()
                self._spared = get_ident()
            return original(context, *tensors)

        return save

    def _hooking_again(self, functions: Any) -> Any:
        """Return the `apply` of all functions of the user; after it tensors are saved by the hooks
        again."""

        def apply(kind: Any, *arguments: Any, **options: Any) -> Any:
            inherited: Any = super(functions, kind)
            if not self._is_on_top():
                return inherited.apply(*arguments, **options)
            try:
                return inherited.apply(*arguments, **options)
            finally:
                self._hook_again()

        return apply

    def _hook_again(self) -> None:
        if self._spared == get_ident():
            self._spared = 0
            if get_ident() in self._threads:
                self._push()

    def _away(self, original: Any) -> Any:
        @contextlib.contextmanager
        def disable(message: str) -> Iterator[None]:
            if not self._is_on_top():
                with original(message):
                    yield
                return
            self._pop()
            try:
                with original(message):
                    yield
            finally:
                self._push()

        return disable

    # --- tensors -----------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Packed:
        with _WITHOUT_TORCH_FUNCTION():
            if not _may_leave(tensor):
                return Plain(tensor)
            with self._cache.lock:
                handle = self._pack(tensor)
                is_for_user = tensor.untyped_storage()._cdata in self._for_user
                handle.entry.is_open = handle.entry.is_open or is_for_user
                return handle

    def _pack(self, tensor: torch.Tensor) -> Handle:
        storage, version = tensor.untyped_storage(), tensor._version
        self._profile.close()
        entry = self._cache.find(storage, version) or self._add(storage, version)
        assert entry.body is not None
        handle = Handle(entry, entry.body, tensor)
        event = SaveEvent(True, entry.ordinal, entry.saved)
        entry.saved += 1
        self._cache.write_behind()
        self._cache.fit(event, entry.nbytes)
        self._open(event, entry)
        return handle

    def _add(self, storage: torch.UntypedStorage, version: int) -> Entry:
        entry = self._cache.add(storage, version)
        entry.node = self._recorder.node_of(storage, version)
        if entry.node is not None:
            entry.node.entry = Reference(entry)
        return entry

    def unpack(self, packed: Packed) -> torch.Tensor:
        if isinstance(packed, Plain):
            with _WITHOUT_TORCH_FUNCTION():
                return packed.value()
        is_for_user = not _is_engine(sys._getframe())
        with unseen():
            if not _is_inference():
                return self._value(packed, is_for_user)
            with torch.inference_mode(False):
                return self._value(packed, is_for_user)

    def _value(self, handle: Handle, is_for_user: bool) -> torch.Tensor:
        with self._cache.lock:
            if is_for_user:
                self._cache.open_unpacked(handle.entry)
            return self._unpack(handle)

    def _unpack(self, handle: Handle) -> torch.Tensor:
        entry = handle.entry
        self._profile.backward_thread = get_ident()
        self._profile.close()
        self._cache.bring(entry)
        tensor = handle.value()
        event = SaveEvent(False, entry.ordinal)
        self._cache.fit(event, entry.nbytes, entry)
        self._cache.read_ahead(entry)
        self._open(event, entry)
        return tensor

    def _open(self, event: SaveEvent, entry: Entry) -> None:
        self._profile.open(event, entry.nbytes)
        if self._profile.tape is not None:
            recipe = (
                {"seconds": entry.node.seconds, "beside": entry.node.beside} if entry.node else {}
            )
            held = self._cache.held_beside(entry)
            self._cache.collect()
            self._profile.record(self._cache.ended, held=held, **recipe)


def _is_engine(frame: FrameType) -> bool:
    """Whether autograd itself has called the hook in that frame, and not Python code, which may
    change what it gets: the backward of a function of the user, or a look at `grad_fn`."""
    return frame.f_back is None or frame.f_back.f_code is _RUNS_BACKWARD


def _is_more_than_bytes(tensor: Any) -> bool:
    """Whether a backward may use more of a tensor than a copy has: its gradient, or attributes that
    user code has given it."""
    if not isinstance(tensor, torch.Tensor):
        return False
    with _WITHOUT_TORCH_FUNCTION():
        is_leaf = tensor.is_leaf and tensor.requires_grad
    return is_leaf or bool(getattr(tensor, "__dict__", None))


def _may_leave(tensor: torch.Tensor) -> bool:
    """Whether a saved tensor is an activation in plain memory."""
    if type(tensor) is not torch.Tensor or _is_functorch_wrapper(tensor):
        return False
    if not is_plain(tensor) or tensor.is_quantized:
        return False
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if size < LEAST or size % tensor.element_size() or is_exposed(storage):
        return False
    return not _is_parameter(tensor)


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Whether this is a leaf, or a view of one."""
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.is_leaf and base.requires_grad


def _has_tangents() -> bool:
    """Whether forward-mode derivatives are computed."""
    return bool(torch.autograd.forward_ad._current_level >= 0)
