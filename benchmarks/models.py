"""The trainings of the benchmarks. Each is a function that runs one iteration of plain PyTorch.

Larger pictures and batches make the activations larger, and leave the parameters as they are.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Iterate = Callable[[], None]


def training(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Iterate:
    optimizer = torch.optim.Adam(model.parameters())

    def iterate() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return iterate


def cnn(batch: int = 32, side: int = 32) -> Iterate:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(8)),
        *(nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    return training(model, torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,)))


def transformer(batch: int = 16) -> Iterate:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(128 * 64, 100))
    return training(model, torch.randn(batch, 64, 128), torch.randint(0, 100, (batch,)))


def perceptron() -> Iterate:
    layers = (part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU()))
    model = nn.Sequential(*layers)
    return training(model, torch.randn(128, 512), torch.randint(0, 512, (128,)))


def half_idle() -> Iterate:
    """A training on one core that waits for its data half of the time. The waits vary: otherwise
    two trainings would compute in the same rhythm, and chance would decide their gain."""
    torch.set_num_threads(1)
    iterate = cnn()
    luck = random.Random(os.getpid())

    def load_and_iterate() -> None:
        begun = time.process_time()
        iterate()
        time.sleep(luck.uniform(0.5, 1.5) * (time.process_time() - begun))

    return load_and_iterate


TRAININGS: dict[str, Callable[[], Iterate]] = {
    "cnn": cnn,
    "transformer": transformer,
    "perceptron": perceptron,
    "half_idle": half_idle,
    "busy": lambda: cnn(batch=64),
    "large_cnn": lambda: cnn(batch=48, side=64),
    "large_transformer": lambda: transformer(batch=80),
}
