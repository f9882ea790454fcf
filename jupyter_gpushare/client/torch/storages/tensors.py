"""The tensors that Python can reach, and the memory behind them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .... import _core


def tensors(*kinds: type, generation: int | None = None) -> list[Any]:
    """Return all objects of these kinds that Python knows, or those in one generation of the
    garbage collector; this is safe while other threads compute.

    A gradient is among them once Python has read it, as an optimiser's step does. This does not
    read `grad`: another thread's backward writes it without the GIL, and the process would crash.
    """
    return _core.living_objects(list(kinds), generation)


def without_subclasses() -> AbstractContextManager[object]:
    """A block in which tensors are read without code of their subclasses, if PyTorch can do so."""
    import torch

    found: Any = getattr(torch._C, "DisableTorchFunctionSubclass", nullcontext)
    block: AbstractContextManager[object] = found()
    return block


def storage_of(tensor: Any) -> Any:
    """Return the storage of a tensor; None for fake, sparse and wrapper tensors, which have no
    memory of their own."""
    try:
        storage = tensor.untyped_storage()
        has_memory = storage.device.type != "meta" and storage.resizable() and storage.data_ptr()
        return storage if has_memory else None
    except Exception:
        return None


class WeakStorage:
    """A weak reference to a storage. Without a call of `end` it leaves a few bytes behind.
    PyTorch's own class has a `__del__` in Python, which ignores an interrupt, so the cell would go
    on."""

    __slots__ = ("_kind", "_weak")

    def __init__(self, storage: Any) -> None:
        self._kind, self._weak = type(storage), storage._weak_ref()

    def is_to(self, storage: Any) -> bool:
        return bool(self._weak == storage._cdata)  # no other storage gets the address before `end`

    def has_ended(self) -> bool:
        """Whether the storage has ended, or `end` was called."""
        return not self._weak or bool(self._kind._expired(self._weak))

    def end(self) -> None:
        weak, self._weak = self._weak, 0
        if weak:
            self._kind._free_weak_ref(weak)


def lent_blocks() -> list[tuple[int, int]]:
    """Return addresses and sizes (bytes) of CPU storages that NumPy views or has viewed.

    Through such a view Python passes the memory to system calls, as in `file.readinto(view)`.
    PyTorch marks these storages for good, and they cannot be resized.
    """
    import torch

    with without_subclasses():
        return [block for tensor in tensors(torch.Tensor) if (block := _lent_block(tensor))]


def _lent_block(tensor: Any) -> tuple[int, int] | None:
    try:
        storage = tensor.untyped_storage()
        is_lent = storage.device.type == "cpu" and not storage.resizable()
        return (storage.data_ptr(), storage.nbytes()) if is_lent else None
    except Exception:
        return None
