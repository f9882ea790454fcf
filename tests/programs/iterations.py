"""Trainings of several kinds. Each runs its iterations inside `iteration()`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .networks import WIDTH, Gpt, Of, adversarial, of_tokens, tokens, train

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
    return _trained(model, (x, y), torch.optim.Adam, iteration, **zero_grad)


def of_transformer(iteration: Iteration) -> Bits:
    torch.manual_seed(0)
    return _trained(
        Gpt(width=128, words=500), tokens(), torch.optim.AdamW, iteration, loss_of=of_tokens
    )


def of_lstm(iteration: Iteration) -> Bits:
    torch.manual_seed(0)
    lstm, head = nn.LSTM(WIDTH, 128, 2, batch_first=True), nn.Linear(128, 10)
    model = Of(lambda self, x: self.head(self.lstm(x)[0][:, -1]), lstm=lstm, head=head)
    batch = torch.randn(16, 20, WIDTH), torch.randint(0, 10, (16,))
    return bits_of(train(model, batch, ITERATIONS, iteration=iteration))


def of_gan(iteration: Iteration) -> Bits:
    torch.manual_seed(0)
    return bits_of(adversarial(iteration, ITERATIONS))


def _trained(model: nn.Module, batch: Any, kind: Any, iteration: Iteration, **more: Any) -> Bits:
    optimizer = kind(model.parameters())
    return bits_of(train(model, batch, ITERATIONS, optimizer, iteration=iteration, **more))


TRAININGS: dict[str, Callable[[Iteration], Bits]] = {
    "cnn": of_cnn,
    "transformer": of_transformer,
    "lstm": of_lstm,
    "gan": of_gan,
}
