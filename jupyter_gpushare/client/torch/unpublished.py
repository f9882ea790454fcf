"""The unpublished names of PyTorch that squeezing uses. They are looked up once, when sharing
begins: a missing name is told in words, and not met in a forward of the user."""

from __future__ import annotations

from typing import Any

import torch

# Names that begin with `tensor`, `storage`, `operation` or `module` are attributes of such objects.
NAMES = (
    "torch._C.DisableTorchFunction",
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C._DisableTorchDispatch",
    "torch._C._get_dispatch_stack_at",
    "torch._C._get_function_stack_at",
    "torch._C._get_mkldnn_enabled",
    "torch._C._get_tracing_state",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._set_mkldnn_enabled",
    "torch._C._storage_Use_Count",
    "torch._C._autograd.SavedTensor",
    "torch._C._autograd._enable_record_function",
    "torch._C._autograd._pop_saved_tensors_default_hooks",
    "torch._C._autograd._profiler_enabled",
    "torch._C._autograd._push_saved_tensors_default_hooks",
    "torch._C._autograd._saved_tensors_hooks_is_enabled",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.peek_interpreter_stack",
    "torch.autograd._engine_run_backward",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.forward_ad.enter_dual_level",
    "torch.autograd.function.FunctionCtx.save_for_backward",
    "torch.autograd.graph._engine_run_backward.__code__",
    "torch.autograd.graph.disable_saved_tensors_hooks",
    "torch.fx._symbolic_trace._is_fx_tracing_flag",
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


def lacks() -> str:
    """Return an empty string, or which of the names this version of PyTorch does not have."""
    tensor = torch.empty(0)
    roots = {
        "torch": torch,
        "tensor": tensor,
        "storage": tensor.untyped_storage(),
        "operation": torch.ops.aten.relu.default,
        "module": torch.nn.Identity(),
    }
    missing = [name for name in NAMES if not _has(roots, name)]
    return f"PyTorch {torch.__version__} has no {', '.join(missing)}" if missing else ""


def _has(roots: dict[str, Any], name: str) -> bool:
    root, *parts = name.split(".")
    found = roots[root]
    for part in parts:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
