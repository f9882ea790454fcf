"""ResNet-50, ViT and a small GPT, written here since nothing can be fetched where they run.

Each training runs on made-up data that lies on the device already, so that only the device and the
host's part of PyTorch are measured. A rehearsal builds the same models in miniature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from .places import DEVICE, IS_HOST, IS_REHEARSAL

LARGE_CARD = 40 << 30  # bytes; smaller cards get a quarter of each batch
LEARNING_RATE = 1e-4


class Sizes(NamedTuple):
    """The sizes of one model: the batch, the width, how many layers, and the picture's side or the
    text."""

    batch: int
    width: int
    depth: int
    extent: int


FULL = {
    "resnet50": Sizes(64, 64, 4, 224),
    "vit": Sizes(64, 768, 12, 224),
    "gpt": Sizes(8, 768, 12, 1024),
    "perceptron": Sizes(4096, 2048, 4, 0),
}
MINIATURE = {
    "resnet50": Sizes(4, 8, 2, 32),
    "vit": Sizes(4, 64, 2, 32),
    "gpt": Sizes(4, 64, 2, 64),
    "perceptron": Sizes(256, 128, 4, 0),
}
FOR_A_LANE = 12  # times the batch: a GPU's lane has no tensors up to 1 MiB
VOCABULARY = 256 if IS_REHEARSAL else 50304  # of GPT-2, rounded up
CLASSES = 1000
PATCH = 16


def device() -> torch.device:
    return torch.device("cpu" if IS_HOST else DEVICE)


def synchronize() -> None:
    """Wait until the device has done this process's work."""
    if not IS_HOST:
        torch.cuda.synchronize()


def sizes(model: str) -> Sizes:
    if IS_REHEARSAL:
        chosen = MINIATURE[model]
        return chosen if IS_HOST else chosen._replace(batch=chosen.batch * FOR_A_LANE)
    chosen = FULL[model]
    small = torch.cuda.get_device_properties(0).total_memory < LARGE_CARD
    return chosen._replace(batch=chosen.batch // 4) if small else chosen


# --- ResNet-50 ----------------------------------------------------------------------------------


class Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.way = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.way(x) + self.shortcut(x))


def resnet50(size: Sizes) -> nn.Module:
    def blocks() -> Iterator[nn.Module]:
        before = size.width
        for stage, count in enumerate((3, 4, 6, 3)[: size.depth]):
            width = size.width << stage
            for block in range(count):
                yield Bottleneck(before, width, 2 if block == 0 and stage > 0 else 1)
                before = 4 * width

    last = size.width << (size.depth - 1) << 2
    return nn.Sequential(
        nn.Conv2d(3, size.width, 7, 2, 3, bias=False),
        *(nn.BatchNorm2d(size.width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *blocks(),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, CLASSES)),
    )


# --- ViT and GPT: the same layers ---------------------------------------------------------------


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.heads = width // 64
        self.is_causal = is_causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.wide = nn.Sequential(*wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


class Vit(nn.Module):  # type: ignore[misc]
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.width, PATCH, PATCH)
        places = (size.extent // PATCH) ** 2
        self.places = nn.Parameter(torch.randn(1, places, size.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(size.width, False) for _ in range(size.depth)))
        self.head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.layers(patches + self.places).mean(1))


class Gpt(nn.Module):  # type: ignore[misc]
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Parameter(torch.randn(1, size.extent, size.width) * 0.02)
        self.layers = nn.Sequential(*(Layer(size.width, True) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(self.words(text) + self.places))
        return functional.linear(x, self.words.weight).flatten(0, 1)


def perceptron(size: Sizes) -> nn.Module:
    layers = (nn.Linear(size.width, size.width) for _ in range(size.depth))
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


# --- trainings ----------------------------------------------------------------------------------


class Training(NamedTuple):
    iterate: Callable[[], None]
    forget_gradients: Callable[[], None]


def training(model: nn.Module, x: torch.Tensor, y: torch.Tensor, in_bfloat16: bool) -> Training:
    model.to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def iterate() -> None:
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16, enabled=in_bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return Training(iterate, optimizer.zero_grad)


def pictures(size: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size.batch, 3, size.extent, size.extent, device=device())
    return x, torch.randint(0, CLASSES, (size.batch,), device=device())


def text(size: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.randint(0, VOCABULARY, (size.batch, size.extent), device=device())
    return words, words.roll(-1, 1).flatten()


def rows(size: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size.batch, size.width, device=device())
    return x, torch.randint(0, size.width, (size.batch,), device=device())


class Recipe(NamedTuple):
    model: Callable[[Sizes], nn.Module]
    data: Callable[[Sizes], tuple[torch.Tensor, torch.Tensor]]
    in_bfloat16: bool


RECIPES = {
    "resnet50": Recipe(resnet50, pictures, False),
    "vit": Recipe(Vit, pictures, True),
    "gpt": Recipe(Gpt, text, True),
    "perceptron": Recipe(perceptron, rows, False),
}
MODELS = ("resnet50", "vit", "gpt")  # of the figures


def build(name: str) -> Training:
    """Return a function that runs one iteration of the training."""
    if IS_REHEARSAL:
        torch.set_num_threads(1)
    recipe, size = RECIPES[name], sizes(name)
    torch.manual_seed(0)
    return training(recipe.model(size), *recipe.data(size), recipe.in_bfloat16)
