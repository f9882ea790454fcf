"""Programs that run as they are, and squeezed in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_gpushare.client.session.memory import PageQuotas
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.client.torch.squeeze.squeeze import BELOW_FLOOR, MOVES_NOTHING

from ..conftest import Turns, noticing

Program = Callable[[], Any]


class Squeezed:
    """A memory whose iterations are squeezed, with its boundaries; `told` has its sentences."""

    def __init__(self, directory: Path, **quotas: int) -> None:
        self.told: list[str] = []
        self.memory = TorchMemory(
            page_directory=lambda: str(directory),
            tell=self.told.append,
            quotas=PageQuotas(**quotas),
        )
        self.squeeze = self.memory.squeeze

    @property
    def moved(self) -> int:
        """The bytes that have left memory so far."""
        return self.squeeze.cache.dropped + self.squeeze.tier.written

    @property
    def told_of_trouble(self) -> list[str]:
        """Return `told` without the sentences about the floor."""
        floors = tuple(text.split("{")[0] for text in (BELOW_FLOOR, MOVES_NOTHING))
        return [said for said in self.told if not said.startswith(floors)]

    @contextmanager
    def to(self, size: int, pace: float | None = None) -> Iterator[None]:
        """Squeeze to `size` bytes; `pace` is that of the slower tier, in seconds per byte: 0 always
        moves, and 1 always recomputes if there is a recipe."""
        if pace is not None:
            self.squeeze.tier.pace = pace
        self.memory.want_squeeze(size)
        with noticing(Turns(), self.memory) as self.boundaries:
            yield

    @contextmanager
    def automatically(self) -> Iterator[None]:
        """Squeeze as the grants say, on a device that has no room for the iterations."""
        self.memory.leave_room(0)
        with noticing(Turns(), self.memory) as self.boundaries:
            yield


@pytest.fixture
def squeezed(tmp_path: Path) -> Squeezed:
    return Squeezed(tmp_path)


def assert_nothing_is_left() -> None:
    """This thread runs under no hooks, and functions of PyTorch are its own."""
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


def is_same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the last bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def run(program: Program) -> Any:
    torch.manual_seed(0)
    return program()
