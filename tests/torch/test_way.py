"""The way of one iteration in CONTRIBUTING.md is the way that an iteration takes."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare.client import sharing
from jupyter_gpushare.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("## The way of one iteration")[1]
SECTION = SECTION.split("\n## ")[0]
# In C++, where Python's profiler sees no frame.
NOT_TRACED = {"IdleTurn.enter", "IdleTurn.leave", "Mailbox.hand_on", "Mailbox.wait"}
WARM_UP = 30  # iterations after which the demand is known and the lane is used


def way(name: str) -> list[str]:
    """Return the functions of one point of the list."""
    (point,) = re.findall(rf"^- {name}: (.*?)(?=\n- |\n\n)", SECTION, re.MULTILINE | re.DOTALL)
    return re.findall(r"`([A-Z]\w+\.\w+)`", point)


def defined() -> Iterator[str]:
    """Return `Class.method` of the library."""
    for file in (ROOT / "jupyter_gpushare").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                yield from (f"{node.name}.{method.name}" for method in methods)


@pytest.fixture
def calls(settings: Settings) -> Iterator[list[str]]:
    """Return the methods that two iterations call in a process that has the device for itself, in
    order."""
    sharing.start(settings, name="way")
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (this := frame.f_locals.get("self")) is not None:
            found.append(f"{type(this).__name__}.{frame.f_code.co_name}")

    train(WARM_UP)
    sys.setprofile(note)
    try:
        train(2)
    finally:
        sys.setprofile(None)
    yield found
    sharing.stop()


def train(iterations: int) -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(256, 512)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["begin", "end"])
def test_an_iteration_passes_these_functions_in_this_order(calls: list[str], name: str) -> None:
    rest = iter(calls)
    ours = [function for function in way(name) if function not in NOT_TRACED]
    missing = [function for function in ours if function not in rest]
    assert ours
    assert missing == []


@pytest.mark.parametrize("name", ["ask", "granted", "give back", "direct handoff"])
def test_each_function_of_the_way_exists(name: str) -> None:
    known = {*defined(), "Host.request", "Host.finish", "Scheduler.request", "Scheduler.finish"}
    assert {*way(name)} - NOT_TRACED <= known


@pytest.mark.parametrize("function", sorted(NOT_TRACED))
def test_each_function_of_the_way_in_the_cxx_module_exists(function: str) -> None:
    kind, _, method = function.partition(".")
    assert hasattr(getattr(_core, kind), method)
