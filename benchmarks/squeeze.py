"""Squeezed iterations beside stock PyTorch: peaks that are counted exactly, times in pairs.

`python benchmarks/squeeze.py [ROUNDS] [NETWORK...]` trains each network in one process in several
ways, one iteration of each in turn. A peak is the ephemeral memory of an iteration; a time is the
CPU time of the training thread over that of stock PyTorch in the same round, as a median.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from threading import RLock
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from jupyter_gpushare.client.options import Wanted
from jupyter_gpushare.client.torch.boundaries import Boundaries
from jupyter_gpushare.client.torch.memory import Memory

MIB = 1 << 20
WARM_UP = 4  # iterations until the peak of a budget is steady
PARTS = (0.8, 0.6, 0.4, 0.0)  # of the stock peak; 0: the floor
Batch = tuple[torch.Tensor, torch.Tensor]


class AlexNet(nn.Sequential):  # type: ignore[misc]
    def __init__(self, classes: int = 100) -> None:
        super().__init__(
            *(nn.Conv2d(3, 96, 11, 4), nn.ReLU(True), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(True), nn.LocalResponseNorm(5)),
            *(nn.MaxPool2d(3, 2), nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Flatten()),
            *(nn.Linear(9216, 4096), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, classes)),
        )


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


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), classes: int = 100) -> nn.Module:
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for level, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(channels, 64 << level, 2 if level and not block else 1))
            channels = 256 << level
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def vgg(widths: tuple[int, ...] = (32, 64, 128), classes: int = 100) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(True))
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
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
    parts = [(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*(part for layer in parts for part in layer), nn.Linear(width, 100))


def images(count: int, size: int) -> Callable[[], Batch]:
    return lambda: (torch.randn(count, 3, size, size), torch.randint(100, (count,)))


def vectors(*shape: int) -> Callable[[], Batch]:
    return lambda: (torch.randn(*shape), torch.randint(100, shape[:1]))


def tokens(count: int, length: int) -> Callable[[], Batch]:
    return lambda: (
        torch.randint(2000, (count, length)),
        torch.randint(2000, (count * length,)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "alexnet": (AlexNet, images(16, 227)),
    "vgg": (vgg, images(32, 64)),
    "resnet50": (resnet, images(8, 128)),
    "gpt": (Gpt, tokens(8, 256)),
    "mlp": (perceptron, vectors(4096, 512)),
    "lstm": (Recurrent, vectors(64, 128, 64)),
}


class Granted:
    """Grants every turn at once: what is measured here is one notebook alone."""

    def __init__(self) -> None:
        self.entering = RLock()

    def enter(self) -> None: ...

    def boundary(self) -> None: ...

    def abandon(self) -> None: ...

    def leave(self) -> None: ...


class Training:
    """One way to train a network, an iteration at a time, with random numbers of its own."""

    def __init__(self, name: str) -> None:
        network, draw = NETWORKS[name]
        torch.manual_seed(1)
        self._network, self._batch = network(), draw()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)
        self._random = torch.get_rng_state()
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        torch.set_rng_state(self._random)
        begin = time.thread_time()
        self._optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(self._network(self._batch[0]), self._batch[1])
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())
        del loss
        self.seconds.append(time.thread_time() - begin)
        self._random = torch.get_rng_state()


class Way:
    """A training with a memory of its own, which is installed for its iterations."""

    def __init__(
        self,
        label: str,
        name: str,
        directory: str,
        wanted: Wanted,
    ) -> None:
        self.label = label
        self.memory = Memory(page_directory=lambda: directory)
        self.memory.want_squeeze(wanted)
        self._boundaries = Boundaries(Granted(), self.memory)
        self.training = Training(name)
        self.peak = 0  # bytes of ephemeral memory of the last iteration

    def step(self) -> None:
        self._boundaries.install()
        try:
            self.training.step()
        finally:
            self._boundaries.remove()
        if self.memory.estimator.recent:
            self.peak = self.memory.estimator.recent[-1].ephemeral


class Row(NamedTuple):
    label: str
    peak: int  # bytes
    over_stock: float
    slowdown: float
    is_same: bool


def measured(name: str, rounds: int, directory: str) -> list[Row]:
    stock = Way("stock", name, directory, "off")
    for _ in range(WARM_UP):
        stock.step()
    ways = [Way("hooks, nothing moves", name, directory, 100 * stock.peak)]
    ways += [
        Way(f"{part:.0%}" if part else "floor", name, directory, max(1, int(part * stock.peak)))
        for part in PARTS
    ]
    for way in ways:
        for _ in range(WARM_UP):
            way.step()
    for _ in range(rounds):
        for way in (stock, *ways):
            way.step()
    return [_row(way, stock, rounds) for way in (stock, *ways)]


def _row(way: Way, stock: Way, rounds: int) -> Row:
    pairs = zip(way.training.seconds[-rounds:], stock.training.seconds[-rounds:], strict=True)
    slowdown = statistics.median(ours / theirs for ours, theirs in pairs)
    is_same = way.training.losses == stock.training.losses
    return Row(way.label, way.peak, way.peak / stock.peak, slowdown, is_same)


def main() -> None:
    torch.set_num_threads(1)
    rounds, names = int((sys.argv[1:] or ["9"])[0]), sys.argv[2:] or list(NETWORKS)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for name in names:
            print(name)
            for row in measured(name, rounds, directory):
                same = "same losses" if row.is_same else "OTHER LOSSES"
                print(
                    f"  {row.label:22} {row.peak / MIB:8.1f} MiB {row.over_stock:5.0%}"
                    f"  time {row.slowdown:5.2f}  {same}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
