"""Tensors whose address another library knows.

CuPy, Numba, JAX and others take a tensor's memory by DLPack or by `__cuda_array_interface__`. They
do not notice when PyTorch gives it another address, so such a storage is never moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .tensors import storage_of

_exported: set[int] = set()  # addresses of PyTorch's storage objects; some may have ended


def is_exported(storage: Any) -> bool:
    """Return whether the storage's address may be known outside of PyTorch. This is wrongly true
    only for a new storage object at the address of one that was exported."""
    return storage._cdata in _exported


def watch() -> None:
    """Note the storages that are exported from now on. Idempotent."""
    import torch

    if hasattr(torch._C._to_dlpack, "__wrapped__"):
        return
    for owner, name in (
        (torch._C, "_to_dlpack"),
        (torch._C, "_to_dlpack_versioned"),
        (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
    ):
        if original := getattr(owner, name, None):
            setattr(owner, name, _noting(original))
    interface = torch.Tensor.__cuda_array_interface__
    torch.Tensor.__cuda_array_interface__ = property(_noting(interface.fget))


def _noting(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def noted(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if (storage := storage_of(tensor)) is not None:
            _exported.add(storage._cdata)
        return export(tensor, *arguments, **options)

    return noted
