"""When squeezing steps aside: code that looks at a forward from outside sees it unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import _symbolic_trace
from torch.utils._device import DeviceContext

COMPILED = "the model is compiled; `torch._functorch.config.activation_memory_budget` is for that"

_WITHOUT_TORCH_FUNCTION = torch._C.DisableTorchFunction  # looked up once
_is_symbolic = getattr(_symbolic_trace, "is_fx_symbolic_tracing", None) or (
    _symbolic_trace.is_fx_tracing  # up to 2.8; newer versions warn where it is called
)


def reason(module: torch.nn.Module) -> str:
    """Return an empty string, or why the outermost forward of a module in this thread stays as it
    is."""
    if is_compiled(module):
        return COMPILED
    if _is_traced(module):
        return "it is traced or exported"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func transforms it"
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return "torch.func computes its gradients"
    if top_hooks() is not None:
        return "it runs under saved-tensor hooks of its own, or is checkpointed"
    if has_modes():
        return "it runs under a mode that sees each operation"
    if torch.is_anomaly_enabled():
        return "anomalies are looked for"
    return "it is profiled" if torch._C._autograd._profiler_enabled() else ""


def is_compiled(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def _is_traced(module: torch.nn.Module) -> bool:
    return (
        type(module).__name__ == "ONNXTracedModule"  # a trace begins in its forward
        or torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or _is_symbolic()
    )


def has_modes() -> bool:
    """Whether user code has modes that see operations or functions. A mode that only sets a default
    device does not count."""
    return torch._C._len_torch_dispatch_stack() > 0 or any(
        type(torch._C._get_function_stack_at(at)) is not DeviceContext
        for at in range(torch._C._len_torch_function_stack())
    )


def unseen() -> contextlib.AbstractContextManager[None]:
    """Hide squeezing's own operations from modes and profilers. All tensors of these are plain."""
    if torch._C._len_torch_dispatch_stack() or torch._C._autograd._profiler_enabled():
        return _unseen()
    without: contextlib.AbstractContextManager[None] = _WITHOUT_TORCH_FUNCTION()
    return without


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    was_profiled = torch._C._autograd._profiler_enabled()
    with _WITHOUT_TORCH_FUNCTION(), torch._C._DisableTorchDispatch():
        if was_profiled:
            torch._C._autograd._enable_record_function(False)
        try:
            yield
        finally:
            if was_profiled:
                torch._C._autograd._enable_record_function(True)


def top_hooks() -> Any:
    """Return the hooks of saved tensors in force in this thread, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def top_mode() -> Any:
    """Return the mode of dispatch on top in this thread, or None."""
    count = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(count - 1) if count else None
