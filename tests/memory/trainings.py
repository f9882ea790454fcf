"""Small trainings of several kinds. Each runs its iterations inside `iteration()`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Iteration: TypeAlias = Callable[[], AbstractContextManager[None]]
Bits: TypeAlias = tuple[list[str], list[bytes]]  # of losses, and of weights

ITERATIONS = 8


def bits(losses: list[float], *modules: nn.Module) -> Bits:
    states = [tensor for module in modules for tensor in module.state_dict().values()]
    return [loss.hex() for loss in losses], [state.numpy().tobytes() for state in states]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    iteration: Iteration,
    iterations: int = ITERATIONS,
    **zero_grad: bool,
) -> Bits:
    losses = []
    for _ in range(iterations):
        with iteration():
            optimizer.zero_grad(**zero_grad)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return bits(losses, model)


def cnn() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 64),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )
    return model, torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))


def of_cnn(iteration: Iteration, **zero_grad: bool) -> Bits:
    model, x, y = cnn()
    return train(model, torch.optim.Adam(model.parameters()), x, y, iteration, **zero_grad)


class Transformer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True)
        self.embedding = nn.Embedding(500, width)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 500)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x))).flatten(0, 1)


def of_transformer(iteration: Iteration) -> Bits:
    torch.manual_seed(0)
    model = Transformer()
    words = torch.randint(0, 500, (8, 33))
    optimizer = torch.optim.AdamW(model.parameters())
    return train(model, optimizer, words[:, :-1], words[:, 1:].flatten(), iteration)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def of_lstm(iteration: Iteration) -> Bits:
    torch.manual_seed(0)
    model = Lstm()
    x, y = torch.randn(16, 20, 64), torch.randint(0, 10, (16,))
    return train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), x, y, iteration)


def of_gan(iteration: Iteration) -> Bits:
    """Two optimisers in one iteration, the graph of one going through the other's model."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
    judge = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    making = torch.optim.Adam(maker.parameters(), 1e-3)
    judging = torch.optim.Adam(judge.parameters(), 1e-3)
    real = torch.randn(128, 256)
    losses = []
    for _ in range(ITERATIONS):
        with iteration():
            made = maker(torch.randn(128, 64))
            judging.zero_grad()
            loss = functional.softplus(-judge(real)).mean()
            loss = loss + functional.softplus(judge(made.detach())).mean()
            loss.backward()
            judging.step()
            losses.append(loss.item())
            making.zero_grad()
            loss = functional.softplus(-judge(made)).mean()
            loss.backward()
            making.step()
            losses.append(loss.item())
    return bits(losses, maker, judge)


TRAININGS: dict[str, Callable[[Iteration], Bits]] = {
    "cnn": of_cnn,
    "transformer": of_transformer,
    "lstm": of_lstm,
    "gan": of_gan,
}
