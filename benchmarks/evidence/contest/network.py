"""The network that the notebooks of the comparison train."""

from __future__ import annotations

import time

import torch
import torch._dynamo  # otherwise an optimiser's first step would import it, which takes seconds
from models import Iterate, training
from torch import nn


class Stopwatch(nn.Module):  # type: ignore[misc] # torch's types are not looked at
    """Notes when its model begins to compute."""

    at = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.at = time.monotonic()
        return x


def network(batch: int) -> tuple[Stopwatch, Iterate]:
    """A convolutional network with much activation for little work."""
    stopwatch = Stopwatch()
    model = nn.Sequential(
        *(stopwatch, nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(256, 10)),
    )
    x, y = torch.randn(batch, 3, 64, 64), torch.randint(0, 10, (batch,))
    return stopwatch, training(model, x, y)
