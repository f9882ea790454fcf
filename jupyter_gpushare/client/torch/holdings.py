"""Memory that the variables of a notebook hold and its next iteration does not need: graphs for a
backward, and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..session.memory import HeldBytes
from . import unpublished
from .backwards import Backwards
from .squeeze.recompute.entries import Handle, Plain
from .storages.tensors import storage_of, without_subclasses

LEAST = 1 << 20  # bytes; less is not worth a sentence
DEPTH = 3  # of nested lists and dictionaries
Storages = dict[int, int]  # bytes, by address
SavedTensor: Any = getattr(torch._C._autograd, "SavedTensor", ())


def held_by(variables: Mapping[str, Any]) -> list[HeldBytes]:
    """Return the memory that the variables hold, each part once with all names that reach it, since
    the part is free when none of these does. Return nothing if another thread runs a backward, and
    none may begin one meanwhile; nor if PyTorch lacks the names to find out."""
    if unpublished.lacks(unpublished.LISTING):
        return []
    backwards = Backwards()
    backwards.watch()
    try:
        with backwards.kept_out() as may_read, without_subclasses():
            return list(_held_by(variables)) if may_read else []  # no user code runs
    finally:
        backwards.unwatch()


def _held_by(variables: Mapping[str, Any]) -> Iterator[HeldBytes]:
    found = {name: list(_found_in(value, DEPTH)) for name, value in variables.items()}
    lasting = _storages(one for values in found.values() for one in _lasting(values))
    graphs: dict[str, Storages] = {}
    for name, values in found.items():
        graphs[name], leaves = _graphs(values)
        lasting |= leaves
    gradients = {name: _storages(_gradients(values)) for name, values in found.items()}
    yield from _shared("results", graphs, lasting)
    yield from _shared("gradients", gradients, lasting)


def _shared(kind: str, by_name: Mapping[str, Storages], lasting: Storages) -> Iterator[HeldBytes]:
    sizes: Storages = {}
    names: dict[int, tuple[str, ...]] = {}
    for name, storages in by_name.items():
        for address in storages.keys() - lasting.keys():
            sizes[address] = storages[address]
            names[address] = (*names.get(address, ()), name)
    totals: Counter[tuple[str, ...]] = Counter()
    for address, size in sizes.items():
        totals[names[address]] += size
    return (HeldBytes(kind, to, size) for to, size in totals.most_common() if size >= LEAST)


def _found_in(value: Any, depth: int) -> Iterator[Any]:
    """Return the tensors and modules of a variable, and of plain containers in it."""
    if issubclass(type(value), torch.Tensor | torch.nn.Module):  # `isinstance` asks proxies
        yield value
    elif depth and type(value) in (list, tuple, dict):
        for part in list(value.values() if type(value) is dict else value):
            yield from _found_in(part, depth - 1)


def _lasting(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors that a variable has for their own sake, without a graph."""
    for value in values:
        if isinstance(value, torch.nn.Module):
            yield from value.parameters()
            yield from value.buffers()
        elif value.grad_fn is None:
            yield value


def _gradients(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for module in values:
        if isinstance(module, torch.nn.Module):
            yield from (one.grad for one in module.parameters() if one.grad is not None)


def _graphs(values: Iterable[Any]) -> tuple[Storages, Storages]:
    """Return what the graphs of tensors hold, with the tensors themselves; and the leaves to which
    they lead."""
    results = [one for one in values if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    held, leaves = list(results), []
    ahead, seen = [one.grad_fn for one in results], set()
    while ahead:
        node: Any = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
        leaves += [node.variable] if hasattr(node, "variable") else []
        held += _saved_by(node)
    return _storages(held), _storages(leaves)


def _saved_by(node: Any) -> Iterator[torch.Tensor]:
    """Return the tensors that a node of a graph has in memory. No hook is called, so none brings
    anything back."""
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        try:
            saved = getattr(node, name)
        except RuntimeError:  # a backward has freed it
            continue
        parts = saved if isinstance(saved, tuple | list) else (saved,)
        packed = [part.data for part in parts if isinstance(part, SavedTensor)]
        yield from (one for part in packed if (one := _in_memory(part)) is not None)


def _in_memory(packed: Any) -> torch.Tensor | None:
    if isinstance(packed, Handle | Plain):
        return packed.in_memory()
    return packed if isinstance(packed, torch.Tensor) else None


def _storages(tensors: Iterable[torch.Tensor]) -> Storages:
    found = [storage for one in tensors if (storage := storage_of(one)) is not None]
    return {storage.data_ptr(): storage.nbytes() for storage in found}
