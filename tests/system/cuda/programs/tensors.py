"""Tensors on the fake GPU, and where they lie."""

from __future__ import annotations

import torch
from program import MIB

from jupyter_gpushare import _core


def memory(mebibytes: int, value: int | None = None, device: str = "cuda") -> torch.Tensor:
    made = torch.empty(mebibytes * MIB, dtype=torch.uint8, device=device)
    return made if value is None else made.fill_(value)


def is_all(tensor: torch.Tensor, value: int) -> bool:
    words = torch.full((8,), value, dtype=torch.uint8).view(torch.int64)
    return bool((tensor.cpu().view(torch.int64) == words).all())


def is_inside(tensor: torch.Tensor) -> bool:
    return bool(_core.CudaLane.owns(tensor.data_ptr()))
