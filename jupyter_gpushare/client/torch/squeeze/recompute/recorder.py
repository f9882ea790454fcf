"""Notes recipes while a forward runs.

The recorder sees each operation. Sums of two activations, convolutions, products and everything
random have no recipe: their outputs are the checkpoints between which operations run again.
"""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...storages.tensors import storage_of
from .entries import Entry, is_exposed, is_plain
from .geometry import geometry_of, over
from .recipes import DEEPEST, Call, Copied, Made, RecipeNode, Saved, Source, nothing

aten = torch.ops.aten
TINY = 4 << 10  # bytes; an output of this size or less has no recipe
SMALL = 64 << 10  # bytes; an input of this size or less is copied

# Pure and deterministic, and bound by memory, not by arithmetic.
CHEAP = {
    *(aten.relu.default, aten.gelu.default, aten.silu.default, aten.sigmoid.default),
    *(aten.tanh.default, aten.leaky_relu.default, aten.elu.default, aten.hardtanh.default),
    *(aten.hardswish.default, aten.softplus.default, aten.exp.default, aten.log.default),
    *(aten.sqrt.default, aten.rsqrt.default, aten.neg.default, aten.abs.default),
    *(aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor),
    *(aten.div.Scalar, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
    *(aten.clamp.default, aten.where.self, aten.masked_fill.Scalar, aten._softmax.default),
    *(aten._log_softmax.default, aten.native_layer_norm.default),
    *(aten.native_group_norm.default, aten.native_batch_norm.default),
    *(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default),
    *(aten.avg_pool3d.default, aten.constant_pad_nd.default, aten._to_copy.default),
    aten.clone.default,
}
SUMS = {aten.add.Tensor, aten.sub.Tensor}


def _in_place() -> dict[Any, Any]:
    """Return the operations that change their first argument, each with the one that does not."""
    pairs = {}
    for pure in CHEAP:
        packet = getattr(aten, pure._schema.name.removeprefix("aten::") + "_", None)
        if packet is not None and (changing := getattr(packet, pure._overloadname, None)):
            pairs[changing] = pure
    return pairs


IN_PLACE = _in_place()


class SavedTensors(Protocol):
    """The interface that knows what autograd has saved."""

    def find(self, storage: torch.UntypedStorage, version: int) -> Entry | None: ...

    def open(self, storage: torch.UntypedStorage) -> None:
        """Note that the bytes of the storage change."""


class RecipeRecorder(TorchDispatchMode):  # type: ignore[misc]  # untyped
    """Active in an outermost forward, on top of no other mode."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # a compiled module inside stays compiled

    def __init__(self, saves: SavedTensors) -> None:
        super().__init__()
        self._saves = saves
        self._nodes: dict[int, RecipeNode] = {}  # by the address of the output's storage

    def forget(self) -> None:
        """Note nothing more of these storages, since user code runs unrecorded."""
        for address in tuple(self._nodes):
            self._forget(address)

    def _forget(self, address: int) -> None:
        if (node := self._nodes.pop(address, None)) is not None:
            node.forget_address()

    def node_of(self, storage: torch.UntypedStorage, version: int) -> RecipeNode | None:
        node = self._nodes.get(storage._cdata)
        return node if node is not None and node.is_of(storage, version) else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        pure = IN_PLACE.get(func) or (func if func in CHEAP else None)
        call = self._call(pure, args, kwargs) if pure is not None else None
        if changes(func):
            self._forget_changed(args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        begin = time.perf_counter()
        result = func(*args, **kwargs)
        call.seconds = time.perf_counter() - begin
        is_in_place = pure is not func
        if not is_in_place or _keeps_type(args):
            self._note(call, result, is_in_place)
        return result

    def _forget_changed(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Forget the recipes of all storages that the operation may change. Another tensor of such
        a storage may have a version counter of its own, which the change does not increment."""
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and (storage := storage_of(value)) is not None:
                self._forget(storage._cdata)
                self._saves.open(storage)

    def _call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Call | None:
        """Return the call, which is noted before it runs: it may change its first argument."""
        if any(isinstance(value, torch.Tensor | list) for value in kwargs.values()):
            return None
        refs = [self._source(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        if any(ref is None for ref, arg in zip(refs, args, strict=True) if arg is not None):
            return None
        activations = sum(isinstance(ref, Saved | Made) for ref in refs)
        if not activations or (function in SUMS and activations > 1):
            return None
        if function is aten.native_batch_norm.default and refs[5]:
            refs[3] = refs[4] = None  # running statistics move once, in the forward
        call = Call(function, refs, kwargs)
        return call if max(ref.depth for ref in call.sources()) < DEEPEST else None

    def _source(self, tensor: torch.Tensor) -> Source | None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        if not is_plain(tensor):
            return None
        storage = tensor.untyped_storage()
        source = None if tensor.is_inference() else self._known(tensor, storage)
        if source is not None or storage.nbytes() > SMALL:
            return source
        return Copied(over(storage.clone(), geometry_of(tensor)))

    def _known(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Source | None:
        if is_exposed(storage):
            return None
        version = tensor._version
        if (entry := self._saves.find(storage, version)) is not None:
            return Saved(entry, geometry_of(tensor))
        if (node := self.node_of(storage, version)) is not None:
            return Made(node, geometry_of(tensor))
        return None

    def _note(self, call: Call, result: Any, is_in_place: bool) -> None:
        outputs = result if isinstance(result, tuple | list) else (result,)
        call.made = sum(output.nbytes for output in outputs if isinstance(output, torch.Tensor))
        for index, output in enumerate(outputs):
            node = None
            if isinstance(output, torch.Tensor) and _may_have_recipe(output):
                version = output._version + is_in_place  # autograd increments it after the call
                node = RecipeNode(call, index, output, version)
                self._remember(node, output.untyped_storage()._cdata)
            call.nodes.append(weakref.ref(node) if node is not None else nothing)

    def _remember(self, node: RecipeNode, address: int) -> None:
        self._forget(address)
        self._nodes[address] = node


@functools.cache
def changes(function: Any) -> bool:
    """Whether the operation may change one of its arguments."""
    return bool(function._schema.is_mutable)


def _keeps_type(args: Any) -> bool:
    """Whether an operation in place gives the type that it would give otherwise."""
    return len({arg.dtype for arg in args if isinstance(arg, torch.Tensor)}) == 1


def _may_have_recipe(output: torch.Tensor) -> bool:
    """Whether a result fills its storage, is large enough for a recipe, and has a version, which
    those of inference mode have not. Elements of results do not overlap."""
    if not is_plain(output):
        return False
    size: int = output.untyped_storage().nbytes()
    return size > TINY and size == int(output.nbytes) and not output.is_inference()
