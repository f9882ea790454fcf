"""Sharing looks up the unpublished names of PyTorch before it uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_gpushare.client.torch import unpublished
from jupyter_gpushare.client.torch.unpublished import LISTING, NOTICING, SQUEEZING

from ....programs.graphs import Overwriting
from ....programs.networks import Of, mlp, train, vectors
from ..conftest import alone
from .conftest import Squeezed

OTHERS = [*NOTICING, *(n for n in SQUEEZING[len(LISTING) :] if not n.startswith("operation."))]
OTHERS += [name.partition(" or ")[0] for name in OTHERS if " or " in name]  # as older versions are
FILES = Path(unpublished.__file__).parent.rglob("*.py")
OWN = {"_replace", "_getframe"}  # of Python
# Operations of aten; and what is wrapped only where it is there, or is a module.
ELSEWHERE = {"_softmax", "_log_softmax", "_to_copy", "_kind", "_C", "_autograd", "_functorch"}


def used(path: Path) -> Iterator[str]:
    """Return the names of others that a file uses although they are private."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            yield from (n.name for n in node.names if "._" in f"{node.module}.{n.name}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if is_private or ast.unparse(node).startswith("torch._C."):
                yield node.attr


def test_all_that_is_used_is_looked_for() -> None:
    known = {part for name in unpublished.ALL for part in re.split("[. ]", name)}
    assert not {name for path in FILES for name in used(path)} - known - OWN - ELSEWHERE
    code = f"from {unpublished.__name__} import *; print([lacks(SQUEEZING), without()])"
    assert alone(code) == ["['',", "'']"]  # where nothing else has imported what PyTorch does late


WITHOUT_A_NAME = """
import contextlib, os, pkgutil, sys, torch
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.session.session import Session
from tests.programs.networks import mlp, train, vectors

torch.set_num_threads(1)

def shares_without(name):
    for one in name.split(" or "):
        root, *path, last = one.removesuffix(".__code__").split(".")
        if root == "module":
            torch.nn.Identity = object
        elif root == "torch":
            delattr(pkgutil.resolve_name(".".join((root, *path))), last)
        else:
            place = {"tensor": torch.Tensor, "storage": torch.UntypedStorage}[root]
            setattr(place, last, property())
    trained = None
    with contextlib.suppress(Exception):  # PyTorch may not do without it
        trained = train(mlp(), vectors(8))
    session = Session(name="test", device="host")
    session.close()  # it has all turns then
    sharing._sharing = sharing._Sharing(session)
    sharing._sharing.attach()
    if trained:
        train(mlp(), vectors(8))
    held, memory = {"x": torch.ones(1 << 20, requires_grad=True) * 2}, session.memory
    why_not = memory.why_not_squeezed
    print(name in memory.how, name in why_not, not memory.held_by(held))
    begin = f"PyTorch {torch.__version__} has no "  # a late module may lack the name, too
    assert not why_not or why_not.startswith(begin) or root == "module"

for name in sys.argv[1:]:
    if os.fork() == 0:  # before what looks for it is imported
        shares_without(name)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.mark.parametrize("names", [LISTING, pytest.param(OTHERS, marks=pytest.mark.system)])
def test_a_version_without_one_of_them_shares_and_says_what_steps_aside(
    names: Sequence[str],
) -> None:
    said = iter(alone(WITHOUT_A_NAME, *names))
    for name, *found in zip(names, said, said, said, strict=True):
        expected = name in NOTICING + LISTING, name in SQUEEZING, name in LISTING
        assert found == [*map(str, expected)], name


def test_what_a_function_of_the_user_saves_is_noted_until_the_forward_ends(
    squeezed: Squeezed,
) -> None:
    """Frames do not show which function saves a tensor, since newer versions have no such
    frames."""
    hooks, seen = squeezed.squeeze._hooks, list[bool]()
    model = mlp(Of(lambda module, x: Overwriting.apply(x)))
    model[1].register_forward_hook(lambda *args: seen.append(bool(hooks._for_user)))
    with squeezed.to(1, 1.0):
        train(model, vectors(64), 2)
    assert seen == [True, True]
    assert not hooks._for_user
