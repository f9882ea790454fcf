"""The unpublished names of PyTorch that sharing uses. They are looked up once, when sharing begins:
a feature that needs a missing name steps aside and says so, before code of the user meets it."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pkgutil import resolve_name
from typing import Any

import torch

# Names that begin with `tensor`, `storage`, `operation` or `module` are attributes of such objects.
# One of two names with `or` between them is enough: the second is that of older versions.
NOTICING = (
    "module._compiled_call_impl",
    "module._forward_hooks",
    "module._forward_hooks_always_called",
    "module._modules",
)
LISTING = (
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C._autograd.SavedTensor",
    "torch.autograd._engine_run_backward",
    "torch.autograd.graph._engine_run_backward.__code__",
)
LANES_OF_GPUS = (  # no published function routes the allocations of all threads
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C._cuda_beginAllocateToPool",
    "torch._C._cuda_checkPoolLiveAllocations",
    "torch._C._cuda_customAllocator",
    "torch._C._cuda_endAllocateToPool",
    "torch._C._cuda_releasePool",
    "torch.UntypedStorage._share_cuda_",
    "storage._cdata",
)
SETTINGS_OF_GPUS = ("torch.cuda.memory._snapshot",)
SQUEEZING = (
    *LISTING,
    "torch._C.DisableTorchFunction",
    "torch._C._DisableTorchDispatch",
    "torch._C._get_dispatch_stack_at",
    "torch._C._get_function_stack_at",
    "torch._C._get_mkldnn_enabled",
    "torch._C._get_tracing_state",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._set_mkldnn_enabled",
    "torch._C._storage_Use_Count",
    "torch._C._autograd._enable_record_function",
    "torch._C._autograd._pop_saved_tensors_default_hooks",
    "torch._C._autograd._profiler_enabled",
    "torch._C._autograd._push_saved_tensors_default_hooks",
    "torch._C._autograd._saved_tensors_hooks_is_enabled",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.peek_interpreter_stack",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.forward_ad.enter_dual_level",
    "torch.autograd.function.FunctionCtx.save_for_backward",
    "torch.autograd.function._SingleLevelFunction",
    "torch.autograd.graph.disable_saved_tensors_hooks",
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing or torch.fx._symbolic_trace.is_fx_tracing",
    "torch.utils._device.DeviceContext",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._pytree.tree_leaves",
    "module._compiled_call_impl",
    "operation._overloadname",
    "operation._schema.is_mutable",
    "storage._cdata",
    "storage._expired",
    "storage._free_weak_ref",
    "storage._weak_ref",
    "tensor._base",
    "tensor._is_view",
    "tensor._is_zerotensor",
    "tensor._version",
)
ALL = {*NOTICING, *SQUEEZING, *LANES_OF_GPUS, *SETTINGS_OF_GPUS}
STEPS_ASIDE = (
    (NOTICING, "only loops over `jupyter_gpushare.iterations` take turns"),
    (LISTING, "`%gpushare tidy` lists no variables"),
)


def without() -> str:
    """Return an empty string, or the end of a sentence that says which features step aside, and
    why."""
    found = ((does, lacks(names)) for names, does in STEPS_ASIDE)
    return "".join(f", and {does}: {reason}" for does, reason in found if reason)


def lacks(names: Iterable[str]) -> str:
    """Return an empty string, or the names among these that this version of PyTorch does not
    have."""
    tensor = torch.empty(0)
    objects = {
        "tensor": tensor,
        "storage": tensor.untyped_storage(),
        "operation": torch.ops.aten.relu.default,
        "module": torch.nn.Identity(),
    }
    missing = [name for name in names if not any(_has(objects, n) for n in name.split(" or "))]
    return f"PyTorch {torch.__version__} has no {', '.join(missing)}" if missing else ""


def _has(objects: dict[str, Any], name: str) -> bool:
    root, _, attributes = name.partition(".")
    try:
        if root in objects:
            attrgetter(attributes)(objects[root])
        else:
            resolve_name(name)  # PyTorch imports some of its modules only when they are used
    except (ImportError, AttributeError):
        return False
    return True
