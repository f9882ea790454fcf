"""Small networks as people write them, with activations large enough to be moved."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

WIDTH = 64


def cnn(*middle, norm=True):
    """A CNN with BatchNorm and a ReLU in place; `middle` are layers of 16 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *([nn.BatchNorm2d(16)] if norm else []),
        nn.ReLU(True),
        *middle,
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def mlp(*layers, width=256):
    middle = layers or (nn.LayerNorm(width), nn.GELU())
    return nn.Sequential(
        nn.Linear(WIDTH, width), *middle, nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)
    )


class Residual(nn.Module):
    """A block with a sum in place."""

    def __init__(self, channels=16):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x
        return self.relu(out)


class Attention(nn.Module):
    def __init__(self, width, is_fused):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.is_fused, self.drop = is_fused, nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, -1).transpose(1, 2) for z in self.qkv(x).split(d, 2))
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5)
            y = self.drop(F.softmax(scores.masked_fill(~mask, float("-inf")), -1)) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, t, d))


class Gpt(nn.Module):
    def __init__(self, layers=2, width=64, words=100, length=32, is_fused=True):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.attentions = nn.ModuleList(Attention(width, is_fused) for _ in range(layers))
        self.perceptrons = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
                nn.Dropout(0.1),
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        for attention, perceptron in zip(self.attentions, self.perceptrons, strict=True):
            x = x + attention(x)
            x = x + perceptron(x)
        return self.head(x)


def images(count=8, size=32):
    return torch.randn(count, 3, size, size), torch.randint(4, (count,))


def vectors(count=256, width=WIDTH):
    return torch.randn(count, width), torch.randint(4, (count,))


def states(*modules):
    return [t.detach() for module in modules for t in (*module.parameters(), *module.buffers())]


def gradients(*modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def train(model, batch, steps=3, optimizer=None, loss_of=F.cross_entropy):
    """Train on one batch; return the losses and the state."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = batch
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(model)
