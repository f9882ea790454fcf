"""Tensors that are sharded over ranks, as by `fully_shard`. Each rank writes its shards. On resume
it fills its present shards from the files of all ranks.

The files hold tensors and plain values alone. Those of `torch.distributed.checkpoint` do not: its
reader unpickles what it finds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ....errors import InvalidValue
from ...checkpoints.store import sync
from . import states

FOLDER = "shards"  # of a checkpoint; it has a file for each rank
MARK = "gpushare.sharded"  # the key of the mark that replaces a sharded tensor in a state
DTENSOR = ("torch.distributed.tensor", "DTensor")
REFUSED = (
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)


def is_sharded(kept: Mapping[str, Any], ranks: int) -> bool:
    """Whether the kept objects have sharded tensors. Raises InvalidValue for tensors that a
    checkpoint cannot hold."""
    for name, thing in kept.items():
        _check(name, thing.modules() if isinstance(thing, Module) else [])
    return DTENSOR[0] in sys.modules and bool(Split(kept, ranks).tensors)


def _check(name: str, parts: Iterable[Any]) -> None:
    found = {kind for part in parts for module, kind in REFUSED if _is(part, module, kind)}
    if found:
        raise InvalidValue(
            f"`{name}` cannot be kept: a checkpoint holds what torch.distributed.fsdp.fully_shard"
            f" shards, and this is a {found.pop()}"
        )


def _is(value: Any, module: str, kind: str) -> bool:
    """Whether the value is of a class whose module may not be imported by now."""
    return isinstance(value, getattr(sys.modules.get(module), kind, ()))


def _walked(state: Any, path: str, leaf: Callable[[str, Any], Any]) -> Any:
    """Return a copy of the state in which each leaf is replaced by `leaf` of its path and value."""
    if isinstance(state, dict) and MARK not in state:
        made = copy(state)  # that of a module has attributes
        for key, value in state.items():  # `update` of a Counter adds
            made[key] = _walked(value, f"{path}.{key}", leaf)
        return made
    if isinstance(state, list | tuple):
        values = [_walked(value, f"{path}.{at}", leaf) for at, value in enumerate(state)]
        return values if isinstance(state, list) else tuple(values)
    return leaf(path, state)


class Split:
    """The kept states, as their sharded tensors and the rest, in which marks replace these."""

    def __init__(self, kept: Mapping[str, Any], ranks: int) -> None:
        """Raises InvalidValue for a tensor that a checkpoint cannot hold."""
        self.tensors: dict[str, Any] = {}
        self._of_models: dict[str, Any] = {}
        self._ranks = ranks
        names = sorted(kept, key=lambda name: not isinstance(kept[name], Module))  # models first
        self.rest = {name: self._rest_of(name, kept[name]) for name in names}

    def _rest_of(self, name: str, thing: Any) -> Any:
        marked = partial(self._marked, isinstance(thing, Module))
        return _walked(states.state_of(thing), name, marked)

    def _marked(self, is_of_model: bool, path: str, value: Any) -> Any:
        _check(path, [value])
        if not _is(value, *DTENSOR):
            return value
        self.tensors[path] = value
        if is_of_model:
            self._of_models[path] = value
        return {MARK: path, "shape": list(value.shape), "like": self._like(path, value)}

    def _like(self, path: str, value: Any) -> str:
        """Return the name of the first tensor of a model with the layout of this one. A job that
        resumes has the model, but its optimizer has no tensors before its first step."""
        is_partial = any(placement.is_partial() for placement in value.placements)
        if value.device_mesh.size() == self._ranks and not is_partial:
            for name, other in self._of_models.items():
                if _layout(other) == _layout(value):
                    return name
        raise InvalidValue(
            f"`{path}` cannot be kept: a checkpoint holds tensors that are sharded over all ranks"
            " of the job, like some of a model that is kept, too"
        )


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.device_mesh, tensor.placements


def write(split: Split, path: Path) -> None:
    """Write the file of this rank. Raises OSError and RuntimeError, as on a full disk."""
    with torch.no_grad():
        shards = {name: _shard(each) for name, each in split.tensors.items() if _is_first(each)}
    states.write({"rest": split.rest, "shards": shards}, path)
    sync(path)


def _is_first(tensor: Any) -> bool:
    """Whether this rank is the first of those that have the same shard."""
    where = zip(tensor.device_mesh.get_coordinate(), tensor.placements, strict=True)
    return all(at == 0 for at, placement in where if placement.is_replicate())


def _shard(tensor: Any) -> list[Any]:
    """Return where the shard of this rank begins in the tensor, and the shard itself. The shard has
    memory of its own, since PyTorch writes whole storages."""
    begins, local = _present(tensor)
    is_part = local.untyped_storage().nbytes() > local.nbytes
    return [begins, local.clone() if is_part else local]


def _present(tensor: Any) -> tuple[list[int], Any]:
    """Return where the local part of a tensor begins, and that part. A tensor that is not sharded
    is its own shard."""
    if not _is(tensor, *DTENSOR):
        return [0] * tensor.dim(), tensor
    (chunk,) = tensor.__create_chunk_list__()
    return list(chunk.offsets), tensor.to_local()


class Shards:
    """The files of all ranks."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        """If the same number of ranks has saved, each rank reads its own file first, else that of
        the first rank."""
        paths = [folder / name_of(number) for number in range(len([*folder.iterdir()]))]
        own = paths.pop(rank if len(paths) == ranks else 0)
        self._paths = [own, *paths]

    @cached_property
    def _own(self) -> dict[str, Any]:
        return states.read(self._paths[0])

    @cached_property
    def _others(self) -> list[dict[str, Any]]:
        return [states.read(path, mmap=True) for path in self._paths[1:]]

    def loaded(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved states, with the present tensors, whose shards are filled. Raises
        InvalidValue."""
        present: dict[str, Any] = {}
        for name, thing in kept.items():
            _walked(states.state_of(thing), name, present.__setitem__)

        def leaf(path: str, value: Any) -> Any:
            is_mark = isinstance(value, dict)
            return self._filled(value, present) if is_mark else value

        with torch.no_grad():
            return {name: _walked(rest, name, leaf) for name, rest in self._own["rest"].items()}

    def _filled(self, mark: Mapping[str, Any], present: Mapping[str, Any]) -> Any:
        path, shape = mark[MARK], mark["shape"]
        tensor = present.get(path)
        if tensor is None:
            dtype = next(self._of(path))[1].dtype
            tensor = _new(shape, dtype, present.get(mark["like"]))
        if tensor is None or list(tensor.shape) != shape:
            raise InvalidValue(f"`{path}` was saved with the shape {shape}, and has another by now")
        _fill(path, tensor, self._of(path))
        return tensor

    def _of(self, path: str) -> Iterator[Any]:
        """Yield the shards of a tensor; read the files of other ranks only if they are needed."""
        if path in self._own["shards"]:
            yield self._own["shards"][path]
        for other in self._others:
            if path in other["shards"]:
                yield other["shards"][path]


def name_of(rank: int) -> str:
    return f"{rank}.pt"


def _new(shape: Sequence[int], dtype: torch.dtype, like: Any) -> Any:
    """Return a tensor with the layout of `like`; None if `like` is None."""
    if like is None:
        return None
    if not _is(like, *DTENSOR):
        return torch.empty(shape, dtype=dtype, device=like.device)
    from torch.distributed.tensor import empty

    return empty(shape, dtype=dtype, device_mesh=like.device_mesh, placements=like.placements)


def _fill(path: str, tensor: Any, shards: Iterator[Any]) -> None:
    """Fill this rank's shard of the tensor from the saved shards, which do not overlap."""
    begins, local = _present(tensor)
    missing = local.numel()
    while missing:
        found = next(shards, None)
        if found is None:
            raise InvalidValue(f"the checkpoint has not all of `{path}`")
        missing -= _copy(begins, local, *found)


def _copy(begins: Sequence[int], into: Any, its_begins: Sequence[int], shard: Any) -> int:
    """Copy the overlap of two shards of a tensor; return its number of elements."""
    for dim, (begin, its) in enumerate(zip(begins, its_begins, strict=True)):
        first = max(begin, its)
        count = min(begin + into.shape[dim], its + shard.shape[dim]) - first
        if count <= 0:
            return 0
        into, shard = (
            into.narrow(dim, first - begin, count),
            shard.narrow(dim, first - its, count),
        )
    into.copy_(shard)
    return int(into.numel())
