"""The recipes to recompute a storage: operations, and the places of their inputs.

A recipe holds no activation: an input is an entry that autograd has saved, the output of another
recipe, or a small copy that belongs to the recipe. So no later change by user code can change the
result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from ...storages.tensors import WeakStorage
from .entries import Entry
from .geometry import Geometry, geometry_of, over

DEEPEST = 16  # operations in a row; the output of one more is moved instead


class Entries(Protocol):
    """The interface that has the bytes of entries."""

    def bring(self, entry: Entry) -> torch.UntypedStorage:
        """Return the storage of an entry, in memory."""

    def evict(self, need: int) -> None:
        """Let entries leave until `need` more bytes fit."""

    def offer(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Use these bytes for an entry that has none in memory."""


@dataclass
class Copied:
    """A small input, copied with its geometry: kernels of other strides may round otherwise."""

    tensor: torch.Tensor

    depth: ClassVar[int] = 0
    seconds: ClassVar[float] = 0.0
    nbytes: ClassVar[int] = 0
    beside: ClassVar[int] = 0

    def value(self, entries: Entries) -> torch.Tensor:
        return self.tensor

    def is_closed(self) -> bool:
        return True


@dataclass
class Saved:
    """An input that autograd has saved."""

    entry: Entry
    geometry: Geometry

    seconds: ClassVar[float] = 0.0

    @property
    def nbytes(self) -> int:
        return self.entry.nbytes

    @property
    def beside(self) -> int:
        entry = self.entry
        return entry.nbytes if entry.node is None else max(entry.nbytes, entry.node.beside)

    @property
    def depth(self) -> int:
        return self.entry.node.depth if self.entry.node is not None else 0

    def value(self, entries: Entries) -> torch.Tensor:
        return over(entries.bring(self.entry), self.geometry)

    def is_closed(self) -> bool:
        return self.entry.is_closed()


@dataclass
class Made:
    """An input that is itself the output of a recipe."""

    node: RecipeNode
    geometry: Geometry

    @property
    def nbytes(self) -> int:
        return self.node.nbytes

    @property
    def beside(self) -> int:
        return self.node.beside

    @property
    def depth(self) -> int:
        return self.node.depth

    @property
    def seconds(self) -> float:
        return self.node.seconds

    def value(self, entries: Entries) -> torch.Tensor:
        entry = self.node.entry()  # perhaps saved later, with other bytes than the node makes
        if entry is not None and entry.is_closed():
            return over(entries.bring(entry), self.geometry)
        return over(self.node.make(entries), self.geometry)

    def is_closed(self) -> bool:
        entry = self.node.entry()
        return self.node.is_closed() if entry is None else entry.is_closed()


Source = Copied | Saved | Made


class Call:
    """One operation with its arguments, and weak references to the nodes of its outputs."""

    __slots__ = ("_args", "_arithmetic", "_function", "_kwargs", "made", "nodes", "seconds")

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._arithmetic = arithmetic()
        self.nodes: list[Callable[[], RecipeNode | None]] = []
        self.seconds = 0.0  # that the operation took
        self.made = 0  # bytes of its outputs

    def sources(self) -> list[Source]:
        return [arg for arg in self._args if isinstance(arg, Source)]

    def beside(self) -> int:
        """Return the most bytes that the operation takes when it runs again, its outputs
        included."""
        held = most = 0
        for source in self.sources():
            most = max(most, held + source.beside)
            held += source.nbytes
        return max(most, held + self.made)

    def make(self, entries: Entries) -> list[Any]:
        """Run the operation again, and return its outputs."""
        args = [arg.value(entries) if isinstance(arg, Source) else arg for arg in self._args]
        entries.evict(self.made)
        with _under(self._arithmetic):
            made = self._function(*args, **self._kwargs)
        return list(made) if isinstance(made, tuple | list) else [made]


class RecipeNode:
    """The recipe of one output of a call. `version` is that of the output; `beside` is the most
    bytes that making the output takes."""

    __slots__ = (
        *("__weakref__", "_call", "_geometry", "_index", "_of", "beside", "depth", "entry"),
        *("nbytes", "seconds", "version"),
    )

    def __init__(self, call: Call, index: int, output: torch.Tensor, version: int) -> None:
        self._call, self._index, self.version = call, index, version
        self._of = WeakStorage(output.untyped_storage())
        self._geometry = geometry_of(output)
        self.entry: Callable[[], Entry | None] = nothing
        self.nbytes, self.beside = int(output.nbytes), call.beside()
        sources = call.sources()
        self.depth = 1 + max((source.depth for source in sources), default=0)
        self.seconds = call.seconds + sum(source.seconds for source in sources)

    def is_of(self, storage: torch.UntypedStorage, version: int) -> bool:
        return self.version == version and self._of.is_to(storage)

    def forget_address(self) -> None:
        """Leave the address of the output to others."""
        self._of.end()

    def is_closed(self) -> bool:
        """Whether user code can reach nothing that the recipe reads."""
        return all(source.is_closed() for source in self._call.sources())

    def make(self, entries: Entries) -> torch.UntypedStorage:
        """Return the recomputed bytes; entries of the call's other outputs get theirs if they have
        none."""
        outputs = self._call.make(entries)
        for weak, output in zip(self._call.nodes, outputs, strict=True):
            node = weak()
            if node is not None and node is not self and (entry := node.entry()) is not None:
                entries.offer(entry, node.storage_of(output))
        return self.storage_of(outputs[self._index])

    def storage_of(self, output: torch.Tensor) -> torch.UntypedStorage:
        """Return the storage of an output, laid out as the first time: an operation in place keeps
        the strides of its argument."""
        if geometry_of(output) != self._geometry:
            storage = torch.UntypedStorage(output.nbytes)
            output = over(storage, self._geometry).copy_(output)
        return output.untyped_storage()


class Arithmetic(NamedTuple):
    """The part of PyTorch's state on which the bits of a result depend."""

    threads: int  # sums of a batch norm depend on them
    flushes_denormals: bool
    has_onednn: bool  # GELU of oneDNN gives other bits
    default_type: torch.dtype  # of integers times a constant


def arithmetic() -> Arithmetic:
    """Return the state now, in this thread."""
    return Arithmetic(
        torch.get_num_threads(),
        _DENORMAL * 1.0 == 0.0,  # Python computes in the same mode, which PyTorch does not tell
        torch._C._get_mkldnn_enabled(),
        torch.get_default_dtype(),
    )


@contextlib.contextmanager
def _under(wanted: Arithmetic) -> Iterator[None]:
    """Run operations as PyTorch ran them the first time."""
    before = arithmetic()
    if before == wanted:
        yield
        return
    _set(wanted, before)
    try:
        yield
    finally:
        _set(before, wanted)


def _set(wanted: Arithmetic, before: Arithmetic) -> None:
    for setting, to, was in zip(_SETTINGS, wanted, before, strict=True):
        if to != was:
            setting(to)


_SETTINGS: tuple[Callable[[Any], object], ...] = (
    torch.set_num_threads,
    torch.set_flush_denormal,
    torch._C._set_mkldnn_enabled,
    torch.set_default_dtype,
)
_DENORMAL = 5e-324


def nothing() -> None:
    return None
