"""The way of one iteration in CONTRIBUTING.md is the way that an iteration takes."""

from __future__ import annotations

import ast
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ....conftest import Opened
from ....polling import next_of
from ....violations import ROOT

SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("## The way of one iteration")[1]
SECTION = SECTION.split("\n## ")[0]
# These are in C++, where Python's profiler sees no frame.
NOT_TRACED = {f"IdleTurn.{name}" for name in ("enter", "leave")} | {
    f"HandoffSlot.{name}" for name in ("look", "hand_off", "wait")
}
OF_A_SESSION = {"Session", "Turn", "Dispatch", "LaneUse", "Link", "Client"}
OF_THE_BROKER = {"Connection", "Service", "Turns", "Host", "Grants"}
TRACED = Path(__file__).with_name("traced")  # for PYTHONPATH: each broker notes what it calls
MOST = 7  # functions of both processes that each point of a switch passes
POINTS = ["ask", "granted", "give back"]
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


def calls_of(work: Callable[[], None]) -> list[str]:
    """Return the methods that `work` calls in this thread, in order."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (this := frame.f_locals.get("self")) is not None:
            found.append(f"{type(this).__name__}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture
def calls(settings: Settings) -> Iterator[list[str]]:
    """The calls of two iterations in a process that has the device for itself."""
    sharing.start(settings, name="way")
    train(WARM_UP)
    yield calls_of(lambda: train(2))
    sharing.stop()


@pytest.fixture
def calls_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which the broker writes each of its calls."""
    paths = filter(None, [str(TRACED), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("CALLS_OF_THE_BROKER", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def switch(calls_of_the_broker: Path, settings: Settings, opened: Opened) -> Iterator[list[str]]:
    """The calls of a session that asks for a turn, waits, and gives it back to another one."""
    session = opened("way")
    with Client.connect(settings) as other:
        other.ask(m.Open(id="other", name="other", demand=Demand(1, 1, measured=True)))
        session.enter()
        session.boundary()
        session.leave()
        other.send(m.Request(1))
        assert isinstance(other.receive(), m.Grant)

        def finish(wait: m.Wait) -> None:
            session.on_wait = lambda wait: None
            other.send(m.Finish(1), m.Request(2))

        session.on_wait = finish
        called = calls_of(session.enter)
        while session._turn.asked is None:
            select.select([session._link.client], [], [])
            session._turn.look()
        called += calls_of(session.boundary)
        next_of(other, m.Grant)  # then the broker has heard of it
        yield called


def train(iterations: int) -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(256, 512)).sum().backward()
        optimizer.step()


def missing(way: Iterable[str], calls: list[str]) -> list[str]:
    """Return the functions of the list that are not among the calls, in this order."""
    rest = iter(calls)
    return [function for function in way if function not in rest]


@pytest.mark.parametrize("name", ["begin", "end"])
def test_an_iteration_passes_these_functions_in_this_order(calls: list[str], name: str) -> None:
    ours = [function for function in way(name) if function not in NOT_TRACED]
    assert ours
    assert missing(ours, calls) == []


@pytest.mark.system
@pytest.mark.parametrize("name", POINTS)
def test_a_switch_passes_these_functions_of_a_session_in_this_order(
    switch: list[str], name: str
) -> None:
    ours = [function for function in way(name) if function.split(".")[0] in OF_A_SESSION]
    assert ours
    assert missing(ours, switch) == []


def of_the_broker(way: list[str]) -> list[str]:
    """The functions of the broker as its trace has them; C++ calls none of them by Python."""
    ours = [function for function in way if function.split(".")[0] in OF_THE_BROKER]
    return [re.sub(r"^Host\.", "C++ ", function) for function in ours]


@pytest.mark.system
@pytest.mark.parametrize("name", POINTS)
def test_each_of_these_functions_of_the_broker_calls_the_next_one_itself(
    calls_of_the_broker: Path, switch: list[str], name: str
) -> None:
    ours = of_the_broker(way(name))
    assert ours
    stacks = {*calls_of_the_broker.read_text().splitlines()}
    assert any(stack.split(" > ")[-len(ours) :] == ours for stack in stacks)


@pytest.mark.system
@pytest.mark.parametrize("name", [*POINTS, "direct handoff"])
def test_each_function_of_the_way_exists(name: str) -> None:
    known = {*defined(), "Host.request", "Host.finish"}
    assert {*way(name)} - NOT_TRACED <= known


@pytest.mark.parametrize("name", POINTS)
def test_a_switch_passes_at_most_seven_functions_of_both_processes(name: str) -> None:
    assert 0 < len(way(name)) <= MOST


@pytest.mark.parametrize("function", sorted(NOT_TRACED))
def test_each_function_of_the_way_in_the_cxx_module_exists(function: str) -> None:
    kind, _, method = function.partition(".")
    assert hasattr(getattr(_core, kind), method)
