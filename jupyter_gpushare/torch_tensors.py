"""The tensors that Python can reach, and the memory behind them."""

from __future__ import annotations

import contextlib
import gc
from typing import Any


def tensors(kind: type) -> list[Any]:
    """All tensors and gradients. `type` asks no object, so no lazy proxy wakes up."""
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    gradients = []
    for tensor in found:
        with contextlib.suppress(Exception):
            if tensor.is_leaf and tensor.grad is not None:
                gradients.append(tensor.grad)
    return found + gradients


def storage_of(tensor: Any) -> Any:
    """Its storage; None where it has no memory of its own: fake, sparse and wrapper tensors."""
    try:
        storage = tensor.untyped_storage()
        has_memory = storage.device.type != "meta" and storage.resizable() and storage.data_ptr()
        return storage if has_memory else None
    except Exception:
        return None
