"""What squeezing uses of PyTorch that is not published is looked for before it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jupyter_gpushare.client.torch import unpublished
from jupyter_gpushare.client.torch.memory import TorchMemory

from ....programs.networks import mlp, train, vectors
from .conftest import Squeezed

ROOM = Path(unpublished.__file__).parent
FILES = [
    *ROOM.glob("squeeze/**/*.py"),
    ROOM / "storages" / "exports.py",
    ROOM / "storages" / "tensors.py",
    ROOM / "holdings.py",
    ROOM / "backwards.py",
]
OWN = {"_replace", "_getframe"}  # of Python
# Operations of aten; and what is wrapped only where it is there, or is a module.
ELSEWHERE = {"_softmax", "_log_softmax", "_to_copy", "_kind", "_C", "_autograd", "_functorch"}


def used(path: Path) -> Iterator[str]:
    """Return the attributes of others that a file uses although they are private."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if is_private or ast.unparse(node).startswith("torch._C."):
                yield node.attr


def test_all_that_is_used_is_looked_for() -> None:
    known = {part for name in unpublished.NAMES for part in name.split(".")}
    missing = {name for path in FILES for name in used(path)} - known - OWN - ELSEWHERE
    assert not missing
    assert unpublished.lacks() == ""


@pytest.mark.parametrize("name", ["_storage_Use_Count", "_len_torch_dispatch_stack"])
def test_a_version_without_one_of_them_squeezes_nothing_and_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, name)
    memory = TorchMemory()
    memory.want_squeeze(1)
    assert f"has no torch._C.{name}" in memory.why_not_squeezed
    assert memory.demand().options == ()


class Own(torch.autograd.Function):
    """A function of the user whose backward changes what it has saved."""

    @staticmethod
    def forward(context, x):  # type: ignore[no-untyped-def]
        result = x.tanh()
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        (result,) = context.saved_tensors
        return gradient * (1 - result * result)


class Uses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Own.apply(x)
        return result


def test_what_a_function_of_the_user_saves_is_noted_until_the_forward_ends(
    squeezed: Squeezed,
) -> None:
    """Which function asks for it is not seen in frames, which newer versions do not have."""
    hooks, seen = squeezed.squeeze._hooks, list[bool]()
    model = mlp(Uses())
    model[1].register_forward_hook(lambda *args: seen.append(bool(hooks._for_user)))
    with squeezed.to(1, 1.0):
        train(model, vectors(64), 2)
    assert seen == [True, True]
    assert not hooks._for_user
