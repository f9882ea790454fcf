"""The trainings of `costs.py`: networks as people write them, on one batch each."""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Around = Callable[[], contextlib.AbstractContextManager[Any]]
Wrap = Callable[[nn.Module], nn.Module]


class Block(nn.Sequential):  # type: ignore[misc]
    """Layers that are checkpointed as one."""


class Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)),
            *(nn.ReLU(True), nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.down: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            shrink = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.down = nn.Sequential(shrink, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.down(x), inplace=True)


BLOCKS = Block, Bottleneck, nn.TransformerEncoderLayer, nn.LSTM


def alexnet(classes: int = 100) -> nn.Module:
    return nn.Sequential(
        Block(nn.Conv2d(3, 96, 11, 4), nn.ReLU(True), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)),
        Block(
            *(nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(True), nn.LocalResponseNorm(5)),
            nn.MaxPool2d(3, 2),
        ),
        Block(
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Flatten()),
        ),
        Block(
            *(nn.Linear(9216, 4096), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, classes)),
        ),
    )


def resnet(counts: tuple[int, ...] = (3, 4, 6, 3), classes: int = 100) -> nn.Module:
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for level, count in enumerate(counts):
        for block in range(count):
            layers.append(Bottleneck(channels, 64 << level, 2 if level and not block else 1))
            channels = 256 << level
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def vgg(widths: tuple[int, ...] = (32, 64, 128), classes: int = 100) -> nn.Module:
    stages: list[nn.Module] = []
    channels = 3
    for width in widths:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(True))
            channels = width
        stages.append(Block(*layers, nn.MaxPool2d(2)))
    return nn.Sequential(
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


class Gpt(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int = 6, width: int = 256, words: int = 2000) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        count = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(count)
        x = self.words(ids) + self.places(torch.arange(count))
        return self.head(self.layers(x, mask=mask, is_causal=True)).flatten(0, 1)


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, width, 2, batch_first=True)
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def perceptron(width: int = 512, layers: int = 12) -> nn.Module:
    blocks = (Block(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(layers))
    return nn.Sequential(*blocks, nn.Linear(width, 100))


def generator(width: int = 64) -> nn.Module:
    blocks, channels = [], 64
    for out in (4 * width, 2 * width, width):
        up = nn.ConvTranspose2d(channels, out, 4, 2, 1, bias=False)
        blocks.append(Block(up, nn.BatchNorm2d(out), nn.ReLU(True)))
        channels = out
    return nn.Sequential(*blocks, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def discriminator(width: int = 64) -> nn.Module:
    blocks, channels = [], 3
    for out in (width, 2 * width, 4 * width):
        down = nn.Conv2d(channels, out, 4, 2, 1, bias=False)
        blocks.append(Block(down, nn.BatchNorm2d(out), nn.LeakyReLU(0.2, True)))
        channels = out
    return nn.Sequential(*blocks, nn.Conv2d(channels, 1, 8), nn.Flatten())


def images(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(100, (count,))


def vectors(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(*shape), torch.randint(100, shape[:1])


def tokens(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(2000, (count, length)), torch.randint(2000, (count * length,))


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)


class Training(ABC):
    """An iteration at a time; `networks` have its parameters. `around` surrounds each forward and
    its loss."""

    def __init__(
        self,
        *networks: nn.Module,
        wrap: Wrap = lambda network: network,
        around: Around = contextlib.nullcontext,
    ) -> None:
        self.networks, self._around = networks, around
        for network in networks:
            wrap(network)
        self.optimizers = [_sgd(network) for network in networks]

    @abstractmethod
    def iterate(self) -> float:
        """Train one iteration, and return its loss."""

    def lasting(self) -> list[torch.Tensor]:
        """Return all that outlives an iteration, but for the gradients."""
        tensors = [t for n in self.networks for t in (*n.parameters(), *n.buffers())]
        states = (state for one in self.optimizers for state in one.state.values())
        return tensors + [t for s in states for t in s.values() if isinstance(t, torch.Tensor)]

    def state(self) -> str:
        """Return a hash of `lasting`."""
        digest = hashlib.sha256()
        for tensor in self.lasting():
            digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


class Classifier(Training):
    """A training by cross entropy."""

    def __init__(
        self,
        network: Callable[[], nn.Module],
        batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
        **options: Any,
    ) -> None:
        torch.manual_seed(1)
        self._network, (self._x, self._y) = network(), batch()
        super().__init__(self._network, **options)

    def iterate(self) -> float:
        (optimizer,) = self.optimizers
        optimizer.zero_grad(set_to_none=False)
        with self._around():
            loss = F.cross_entropy(self._network(self._x), self._y)
        loss.backward()
        optimizer.step()
        return float(loss.item())


class Gan(Training):
    """A generator and a discriminator, each with a step of its own in an iteration."""

    def __init__(self, count: int = 8, **options: Any) -> None:
        torch.manual_seed(1)
        self._generator, self._discriminator = generator(), discriminator()
        self._real, self._count = torch.randn(count, 3, 64, 64), count
        super().__init__(self._generator, self._discriminator, **options)

    def iterate(self) -> float:
        of_generator, of_discriminator = self.optimizers
        of_discriminator.zero_grad(set_to_none=False)
        with self._around():
            fake = self._generator(torch.randn(self._count, 64, 4, 4))
            loss = F.softplus(-self._discriminator(self._real)).mean()
            loss = loss + F.softplus(self._discriminator(fake.detach())).mean()
        loss.backward()
        of_discriminator.step()
        of_generator.zero_grad(set_to_none=False)
        with self._around():
            second = F.softplus(-self._discriminator(fake)).mean()
        second.backward()
        of_generator.step()
        return float(loss.item()) + float(second.item())


def _classifier(network: Callable[[], nn.Module], batch: Callable[[], Any]) -> Callable[..., Any]:
    return lambda **options: Classifier(network, batch, **options)


TRAININGS: dict[str, Callable[..., Training]] = {
    "alexnet": _classifier(alexnet, lambda: images(4, 227)),
    "vgg": _classifier(vgg, lambda: images(16, 64)),
    "resnet50": _classifier(resnet, lambda: images(4, 128)),
    "gpt": _classifier(Gpt, lambda: tokens(2, 256)),
    "mlp": _classifier(perceptron, lambda: vectors(1024, 512)),
    "lstm": _classifier(Recurrent, lambda: vectors(64, 32, 64)),
    "gan": Gan,
}
