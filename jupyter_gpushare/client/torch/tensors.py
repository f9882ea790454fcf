"""The tensors that Python can reach, and the memory behind them."""

from __future__ import annotations

from typing import Any

from ... import _core


def tensors(kind: type) -> list[Any]:
    """All tensors that Python knows, safe while other threads compute.

    A gradient is among them once Python has read it, as an optimiser's step does. `grad` is not
    read here: another thread's backward writes it without the GIL, and the process would crash.
    """
    return _core.living_objects(kind)


def storage_of(tensor: Any) -> Any:
    """Its storage; None where it has no memory of its own: fake, sparse and wrapper tensors."""
    try:
        storage = tensor.untyped_storage()
        has_memory = storage.device.type != "meta" and storage.resizable() and storage.data_ptr()
        return storage if has_memory else None
    except Exception:
        return None


def lent_blocks() -> list[tuple[int, int]]:
    """Addresses and sizes of CPU storages that NumPy has views of, or had at some time.

    Through such a view Python gives the memory to system calls, as in `file.readinto(view)`.
    PyTorch marks these storages for good, and they cannot be resized.
    """
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        return [block for tensor in tensors(torch.Tensor) if (block := _lent_block(tensor))]


def _lent_block(tensor: Any) -> tuple[int, int] | None:
    try:
        storage = tensor.untyped_storage()
        is_lent = storage.device.type == "cpu" and not storage.resizable()
        return (storage.data_ptr(), storage.nbytes()) if is_lent else None
    except Exception:
        return None
