"""Tensors that another library has as well, by an address that it was told.

CuPy, Numba, JAX and others take a tensor's memory by DLPack or by `__cuda_array_interface__`. They
are not told when PyTorch gives it another address, so such a storage stays where it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .tensors import storage_of

_exported: set[int] = set()  # storages, by PyTorch's own address of each; some may be gone


def is_exported(storage: Any) -> bool:
    """Whether its address may be known outside of PyTorch. True without reason only where a new
    storage has the place of one that was exported."""
    return storage._cdata in _exported


def watch() -> None:
    """Note what is exported from now on. Idempotent."""
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
