"""Handles in place of saved tensors, and the storages behind them."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from ...storages.exports import has_known_address, is_exported
from ..files.page_file import Extent, PageFile
from .geometry import Geometry, geometry_of, within

if TYPE_CHECKING:
    from .recipes import RecipeNode

_count_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)  # looked up once
CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


class Plain:
    """The handle of a tensor that always stays where it is."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A leaf is kept itself, as autograd does: user code may give its `data` another storage.
        self._tensor = tensor if tensor.is_leaf else alias_of(tensor)
        self._version = tensor._version

    def value(self) -> torch.Tensor:
        """Return the tensor. Raises RuntimeError if it has changed, as autograd does."""
        return _unchanged(self._tensor, self._version)

    def in_memory(self) -> torch.Tensor | None:
        """Return a tensor of these bytes as they are."""
        return self._tensor


class Handle:
    """The handle of a tensor of an entry. Only handles keep an entry alive."""

    __slots__ = ("entry", "geometry", "number")

    def __init__(self, entry: Entry, body: Body, tensor: torch.Tensor) -> None:
        self.entry, self.geometry = entry, geometry_of(tensor)
        self.number = body.add(tensor)  # among the aliases of the entry's first body

    def value(self) -> torch.Tensor:
        """Return the tensor; the entry's bytes are in memory. Raises RuntimeError if it has
        changed, as autograd does."""
        body = self.entry.body
        assert body is not None
        return body.tensor(self.number, self.geometry)

    def in_memory(self) -> torch.Tensor | None:
        """Return a tensor of the entry's bytes as they are; None if they are elsewhere."""
        body = self.entry.body
        return None if body is None else body.aliases[0]


class Body:
    """The bytes of an entry in memory, and all tensors through which autograd reaches them.

    In the first body of an entry `aliases` are the saved tensors, each with the version counter
    that user code changes. In a later one, which came back, there is one, of all bytes
    (`is_whole`).
    """

    __slots__ = ("_versions", "aliases", "is_whole", "storage")

    def __init__(self, storage: torch.UntypedStorage, is_whole: bool) -> None:
        self.storage, self.is_whole = storage, is_whole
        self.aliases: list[torch.Tensor] = []
        self._versions: list[int] = []
        if is_whole:
            self.add(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))

    def add(self, tensor: torch.Tensor) -> int:
        """Note one more saved tensor, and return its number."""
        self._versions.append(tensor._version)
        self.aliases.append(alias_of(tensor))
        return len(self.aliases) - 1

    def tensor(self, number: int, geometry: Geometry) -> torch.Tensor:
        number = 0 if self.is_whole else number
        tensor = _unchanged(self.aliases[number], self._versions[number])
        return within(tensor, geometry) if self.is_whole else tensor

    def is_private(self) -> bool:
        """Whether only autograd can reach the bytes, and nothing has changed them."""
        holders: int = torch._C._storage_Use_Count(self.storage._cdata)
        return holders == 1 + len(self.aliases) and self._is_intact()

    def _is_intact(self) -> bool:
        pairs = zip(self.aliases, self._versions, strict=True)
        return all(tensor._version == version for tensor, version in pairs)


class Filed:
    """The place of an entry in the page file, if it has one, and the transfers to it (`leaving`)
    and from it (`arriving`, the read that fills the entry's body).

    It outlives the entry. No Python code runs at the end of an entry, since Python ignores an
    interrupt there, and the cell would go on.
    """

    __slots__ = ("arriving", "file", "leaving", "place")

    def __init__(self) -> None:
        self.file: PageFile | None = None
        self.place: Extent | None = None
        self.leaving: Future[None] | None = None
        self.arriving: Future[None] | None = None

    def is_arriving(self) -> bool:
        return self.arriving is not None and not self.arriving.done()

    def leave(self) -> None:
        """Free the place, if there is one."""
        place, self.place = self.place, None
        if place is not None and self.file is not None:
            self.file.leave(place, self.arriving or self.leaving)


class Entry:
    """One storage that autograd has saved. Each change of its state is one assignment, since an
    interrupt may come between any two.

    `body` is None while its bytes are not in memory. It `is_open` once its bytes may differ from
    what its recipe makes, and from what other recipes have read.
    """

    __slots__ = (
        *("__weakref__", "body", "filed", "is_open", "is_unused", "nbytes", "node", "ordinal"),
        *("saved", "version"),
    )

    def __init__(self, storage: torch.UntypedStorage, version: int, ordinal: int) -> None:
        self.body: Body | None = Body(storage, is_whole=False)
        self.nbytes: int = storage.nbytes()
        self.version, self.ordinal = version, ordinal
        self.node: RecipeNode | None = None  # its recipe
        self.is_open = False
        self.is_unused = False  # in an iteration after its own
        self.saved = 0  # times, by autograd
        self.filed = Filed()

    def is_of(self, storage: torch.UntypedStorage, version: int) -> bool:
        body = self.body
        if body is None or body.is_whole or self.version != version:
            return False
        return bool(body.storage._cdata == storage._cdata)

    def is_private(self) -> bool:
        """Whether user code and operations do not use the bytes now."""
        return self.body is None or self.body.is_private()

    def is_closed(self) -> bool:
        """Whether recipes may make and read the bytes: user code has not changed them, and cannot
        reach them."""
        body = self.body
        if self.is_open or body is None:
            return not self.is_open
        return body.is_private() and not is_exposed(body.storage)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor are those of its storage, at its geometry."""
    is_strided = tensor.layout == torch.strided and not tensor.is_nested
    return is_strided and tensor.is_cpu and not has_lazy_bytes(tensor)


def has_lazy_bytes(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor differ from the bytes of its storage, as those of a conjugate
    do."""
    return bool(tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())


def is_exposed(storage: torch.UntypedStorage) -> bool:
    """Whether others may change the bytes unseen: NumPy, libraries that take tensors by DLPack,
    workers that share memory, and C code that knows the address."""
    return not storage.resizable() or is_exported(storage) or has_known_address(storage)


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without history that shares the version counter. The recorder sees the
    operation only if it is of a subclass, which makes its own aliases."""
    if type(tensor) is not torch.Tensor or not _count_modes():  # leaving them takes a while
        return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    if tensor._version != version:
        raise RuntimeError(CHANGED)
    return tensor


class Reference(weakref.ref[Entry]):
    """A weak reference to an entry that knows the entry's number in the iteration, and what
    remains of it. The callback must be C code, as Filed explains."""

    __slots__ = ("filed", "ordinal")

    def __init__(self, entry: Entry, callback: Any = None) -> None:
        super().__init__(entry, callback)  # type: ignore[call-arg]
        self.ordinal, self.filed = entry.ordinal, entry.filed
