"""A training that runs its iterations inside `iteration()`, and the bits of its result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .networks import train

Iteration: TypeAlias = Callable[[], AbstractContextManager[None]]
Bits: TypeAlias = tuple[list[str], list[bytes]]  # of losses, and of weights

ITERATIONS = 8


def bits(losses: list[float], *modules: nn.Module) -> Bits:
    return bits_of((losses, [state for each in modules for state in each.state_dict().values()]))


def bits_of(trained: tuple[list[float], list[Tensor]]) -> Bits:
    losses, tensors = trained
    return [loss.hex() for loss in losses], [tensor.numpy().tobytes() for tensor in tensors]


def cnn() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 8 * 8, 64)),
        *(nn.Dropout(0.1), nn.Linear(64, 10)),
    )
    return model, torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))


def of_cnn(iteration: Iteration, **zero_grad: bool) -> Bits:
    model, x, y = cnn()
    optimizer = torch.optim.Adam(model.parameters())
    return bits_of(train(model, (x, y), ITERATIONS, optimizer, iteration=iteration, **zero_grad))
