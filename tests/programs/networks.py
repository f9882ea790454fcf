"""Small networks as people write them, with activations large enough to be moved, and what
programs do with them."""

from __future__ import annotations

import contextlib
import functools
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

WIDTH = 64
SGD = torch.optim.SGD


class Of(nn.Module):
    """A module with these parts, whose forward is that function of it."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            is_buffer = type(part) is torch.Tensor
            (self.register_buffer if is_buffer else self.__setattr__)(name, part)

    def forward(self, *arguments, **options):
        return self.function(self, *arguments, **options)


def cnn(*middle):
    """A CNN with BatchNorm and a ReLU in place; `middle` are layers of 16 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        *middle,
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
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
                *(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()),
                *(nn.Linear(4 * width, width), nn.Dropout(0.1)),
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


def between(change=lambda h: h):
    """Two layers; the second gets the result of `change` for an activation. Further layers follow,
    so that it leaves memory."""

    def forward(self, x):
        h = torch.tanh(self.first(x)) * 2
        return self.second(change(h)).sum() + self.last(x).sum()

    layers = {"first": nn.Linear(WIDTH, 256), "second": nn.Linear(256, 256)}
    return Of(forward, **layers, last=mlp(width=256))


# --- batches and losses ---------------------------------------------------------------------------


def images(count=8, size=32):
    return torch.randn(count, 3, size, size), torch.randint(4, (count,))


def vectors(count=256, width=WIDTH):
    return torch.randn(count, width), torch.randint(4, (count,))


def tokens():
    ids = torch.randint(100, (8, 33))
    return ids[:, :-1], ids[:, 1:].flatten()


def mean_square(out, y=None):
    return out.pow(2).mean()


def of_tokens(out, y):
    return F.cross_entropy(out.flatten(0, 1), y)


def itself(out, y=None):
    return out


# --- training -------------------------------------------------------------------------------------


def states(*modules):
    return [t.detach() for module in modules for t in (*module.parameters(), *module.buffers())]


def gradients(*modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def train(
    model,
    batch,
    steps=3,
    optimizer=None,
    loss_of=F.cross_entropy,
    of=None,
    iteration=contextlib.nullcontext,
    **zero_grad,
):
    """Train on one batch; return the losses and the state. `of` are the modules that are trained,
    where `model` is none; each iteration is run inside of `iteration()`."""
    modules = of or [model]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = optimizer or SGD(parameters, lr=0.05, momentum=0.9)
    x, y = batch
    losses = []
    for _ in range(steps):
        with iteration():
            optimizer.zero_grad(**zero_grad)
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, states(*modules)


def once(model, x):
    """Go forward and back once; return the gradients."""
    model(x).sum().backward()
    return gradients(model)


def through(change):
    return once(between(change), vectors()[0])


def adversarial():
    """Two optimizers in one iteration, the graph of one going through the other's model."""
    layers = nn.Linear(32, 512), nn.BatchNorm1d(512), nn.ReLU(True), nn.Linear(512, 256), nn.Tanh()
    g = nn.Sequential(*layers)
    d = nn.Sequential(
        nn.Linear(256, 512), nn.LeakyReLU(0.2, True), nn.Dropout(0.3), nn.Linear(512, 1)
    )
    of_g, of_d = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    real, losses = torch.randn(128, 256), []
    for _ in range(4):
        fake = g(torch.randn(128, 32))
        of_d.zero_grad()
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        loss_d.backward()
        of_d.step()
        of_g.zero_grad()
        loss_g = F.softplus(-d(fake)).mean()
        loss_g.backward()
        of_g.step()
        losses += [loss_d.item(), loss_g.item()]
    return losses, states(g, d)


# --- tables ---------------------------------------------------------------------------------------


def programs_of(module):
    """Return the functions that a module defines, by name, but for those that begin with `_`."""
    return {
        name: found
        for name, found in vars(sys.modules[module]).items()
        if getattr(found, "__module__", "") == module
        and callable(found)
        and not isinstance(found, type)
        and not name.startswith("_")
    }


def changes(change):
    """A program that does this to an activation: see `between`."""
    return functools.wraps(change)(lambda: through(change))


def may_be_refused(program):
    """A program in which autograd may notice a change, which is its result then."""

    @functools.wraps(program)
    def run():
        try:
            return program()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    return run
