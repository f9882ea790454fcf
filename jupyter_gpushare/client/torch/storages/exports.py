"""Tensors whose address code outside of PyTorch knows.

CuPy, Numba, JAX and others take a tensor's memory by DLPack or by `__cuda_array_interface__`. They
do not notice when PyTorch gives it another address, so such a storage is never moved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from ..patches import Patches
from .tensors import WeakStorage, storage_of

LEAST_PRUNED = 1024  # known addresses; with fewer, none is looked at again

_most_known = LEAST_PRUNED
_exported: set[int] = set()  # addresses of PyTorch's storage objects; some may have ended


def is_exported(storage: Any) -> bool:
    """Return whether the storage's address may be known outside of PyTorch. This is wrongly true
    only for a new storage object at the address of one that was exported."""
    return storage._cdata in _exported


_known: dict[int, WeakStorage] = {}  # storages whose address user code has, by _cdata


def has_known_address(storage: Any) -> bool:
    """Return whether user code has asked for the address of a tensor in that storage, since
    `watch_for`: C code may change the bytes unseen."""
    weak = _known.get(storage._cdata)
    return weak is not None and weak.is_to(storage)


def watch_for(watcher: object) -> None:
    """Note the storages that are exported, or whose address Python asks for, until no watcher is
    left. Idempotent."""
    if not _watchers:
        _note_exports(_until_left)
        _note_addresses(_until_left)
    _watchers.add(watcher)


def unwatch_for(watcher: object) -> None:
    """Leave PyTorch as it was, if this was the last watcher. Idempotent."""
    if watcher in _watchers:
        _watchers.discard(watcher)
        if not _watchers:
            _until_left.undo()


_watchers: weakref.WeakSet[object] = weakref.WeakSet()
_until_left, _for_good = Patches(), Patches()


def _note_addresses(patches: Patches) -> None:
    import torch

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def data_ptr(tensor: Any) -> Any:
            if (storage := storage_of(tensor)) is not None:
                _know(storage)
            return original(tensor)

        return data_ptr

    patches.wrap(torch.Tensor, "data_ptr", noting)


def _know(storage: Any) -> None:
    if not has_known_address(storage):
        _known[storage._cdata] = WeakStorage(storage)
        _prune()


def _prune() -> None:
    """Forget storages that have ended, whenever there are twice as many as before."""
    global _most_known
    if len(_known) > _most_known:
        for address, weak in tuple(_known.items()):
            if weak.has_ended() and _known.pop(address, None) is weak:
                weak.end()
        _most_known = max(LEAST_PRUNED, 2 * len(_known))


@functools.cache
def watch() -> None:
    """Note the storages that are exported from now on. Idempotent."""
    _note_exports(_for_good)


def _note_exports(patches: Patches) -> None:
    import torch

    patches.wrap(torch._C, "_to_dlpack", _noting)
    patches.wrap(torch._C, "_to_dlpack_versioned", _noting)
    patches.wrap(torch.utils.dlpack, "to_dlpack", _noting)
    patches.wrap(torch, "to_dlpack", _noting)
    interface = torch.Tensor.__cuda_array_interface__
    noted = property(_noting(interface.fget))
    patches.put(torch.Tensor, "__cuda_array_interface__", noted)


def _noting(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def noted(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if (storage := storage_of(tensor)) is not None:
            _exported.add(storage._cdata)
        return export(tensor, *arguments, **options)

    return noted
