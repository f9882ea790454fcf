"""Whether this process has captured CUDA graphs. A graph keeps the addresses of what it uses."""

from __future__ import annotations

import functools
from typing import Any

_captured: list[bool] = []


def watch() -> None:
    """Note all captures from now on. Idempotent."""
    import torch

    begin = torch.cuda.CUDAGraph.capture_begin
    if hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def noted(graph: Any, *arguments: Any, **options: Any) -> Any:
        _captured.append(True)
        return begin(graph, *arguments, **options)

    torch.cuda.CUDAGraph.capture_begin = noted


def has_captured() -> bool:
    return bool(_captured)
