"""The skew of a model, by which the service of jobs places it: one large tensor suffers most from a
network between its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import Module


def skew_of(things: Iterable[Any]) -> float:
    """Return the size of the largest parameter of all models among them, as a part of all
    parameters; 0 where there are none."""
    models = [thing for thing in things if isinstance(thing, Module)]
    sizes = [each.numel() * each.element_size() for one in models for each in one.parameters()]
    return float(max(sizes, default=0) / max(1, sum(sizes)))
