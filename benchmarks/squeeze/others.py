"""Other ways to make iterations smaller, for `costs.py`, as people use them: each block of a
network by itself. It also measures the need of the largest operation, which nothing makes
smaller."""

from __future__ import annotations

import functools
import mmap
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.demand.counters import counter_of
from squeeze.networks import BLOCKS, Training

aten = torch.ops.aten
EXPENSIVE = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default),
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def checkpointed(network: nn.Module, **options: Any) -> nn.Module:
    """Put each block under `torch.utils.checkpoint`."""
    for module in network.modules():
        if isinstance(module, BLOCKS):
            run = functools.partial(checkpoint, module.forward, use_reentrant=False, **options)
            setattr(module, "forward", run)  # noqa: B010  # it is a method
    return network


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_expensive = operation in EXPENSIVE
    return CheckpointPolicy.MUST_SAVE if is_expensive else CheckpointPolicy.PREFER_RECOMPUTE


def selectively_checkpointed(network: nn.Module) -> nn.Module:
    """As `checkpointed`, but products and convolutions are saved."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpointed(network, context_fn=contexts)


class Elsewhere:
    """Memory that PyTorch does not count, in the place of the CPU's where the device is a GPU."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, size: int) -> torch.Tensor:
        """Return a tensor of `size` bytes."""
        if self._free[size]:
            return self._free[size].pop()
        return torch.frombuffer(mmap.mmap(-1, max(1, size)), dtype=torch.uint8)[:size]

    def give(self, memory: torch.Tensor) -> None:
        self._free[memory.numel()].append(memory)


class _Copy:
    def __init__(self, elsewhere: Elsewhere, tensor: torch.Tensor) -> None:
        self._elsewhere, self._like = elsewhere, (tensor.dtype, tensor.size())
        self._bytes = elsewhere.take(tensor.nbytes)
        self._view().copy_(tensor)

    def _view(self) -> torch.Tensor:
        return self._bytes.view(self._like[0]).view(self._like[1])

    def back(self) -> torch.Tensor:
        return self._view().clone()

    def __del__(self) -> None:
        self._elsewhere.give(self._bytes)


def save_on_cpu(elsewhere: Elsewhere) -> AbstractContextManager[Any]:
    """Copy each saved tensor each time that it is saved, as `torch.autograd.graph.save_on_cpu` does
    on a GPU; on the CPU that function copies nothing."""

    def pack(tensor: torch.Tensor) -> _Copy:
        return _Copy(elsewhere, tensor.detach())

    hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(pack, _Copy.back)
    return hooks


class WorkingSets(TorchDispatchMode):  # type: ignore[misc]
    """Measures `largest`, the most bytes that one operation reads, writes and takes beside. What
    is `lasting` does not count."""

    def __init__(self, lasting: set[int]) -> None:
        super().__init__()
        self._lasting, self.largest = lasting, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        storages = {storage._cdata: storage.nbytes() for storage in map(_storage, tensors)}
        read = sum(size for key, size in storages.items() if key not in self._lasting)
        before, _ = _core.AllocationCounter.take_peak()
        result = func(*args, **(kwargs or {}))
        _, peak = _core.AllocationCounter.take_peak()
        self.largest = max(self.largest, read + peak - before)
        return result


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def largest_operation(training: Training) -> int:
    """Return the bytes of the largest operation of an iteration, without parameters and their
    state. No way that leaves operations whole needs less."""
    counter_of("host")  # from now on allocations are counted
    training.iterate()
    lasting = training.lasting()
    lasting += [t.grad for t in lasting if t.is_leaf and t.grad is not None]
    with WorkingSets({_storage(tensor)._cdata for tensor in lasting}) as sets:
        training.iterate()
    return int(sets.largest)
