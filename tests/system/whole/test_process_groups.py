"""Members of a process group of torch.distributed on one device: one takes turns for all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client.session.session import JOINED
from jupyter_gpushare.settings import Settings

from ...makers import maker

pytestmark = pytest.mark.system

SECONDS = 120
Start = Callable[..., "subprocess.Popen[str]"]

MEMBER = """
import contextlib, hashlib, json, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import jupyter_gpushare as gpushare

rank, folder, shares, first = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "shares", sys.argv[4]
torch.set_num_threads(1)
told = {"losses": [], "weights": [], "turns": {}}
session = None

class Net(nn.Sequential):
    def forward(self, x):
        if session is not None:
            told["turns"].setdefault(phase, set()).add(session.holding)
        return super().forward(x)

def share():
    global session
    if shares:
        options = {"name": f"member {rank}", "device": "host"}
        session = stack.enter_context(gpushare.session(**options))

def meet(name):
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)

def train(name, iterations=lambda batches: batches):
    global phase
    phase = name
    torch.manual_seed(0)
    net = Net(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    for x in iterations([torch.randn(256, 64) for _ in range(12)]):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        told["losses"].append(loss.item().hex())
    whole = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    told["weights"].append(hashlib.sha256(whole).hexdigest())

with contextlib.ExitStack() as stack:
    if first == "sharing first":
        share()
        train("alone")
        meet("group")
    else:
        meet("group")
        share()
        train("alone, in a group")
    train("together")
    train("in explicit iterations", gpushare.iterations if shares else iter)
    dist.destroy_process_group()
    train("alone again")
    meet("another group")
    train("together again")
    if session is not None and told["turns"]["together again"] == {True}:
        stack.close()
        session = None
    dist.barrier()
    train("without the one that took the turns")
    dist.destroy_process_group()
    train("alone at last")
told["turns"] = {phase: sorted(held) for phase, held in told["turns"].items()}
print(json.dumps(told))
"""

NEIGHBOUR = """
import torch, jupyter_gpushare as gpushare
torch.set_num_threads(1)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with gpushare.session(name="neighbour", device="host") as session:
    for _ in range(200):
        optimizer.zero_grad()
        net(torch.ones(64, 64)).square().mean().backward()
        assert session.holding
        optimizer.step()
"""

GROUP_OF_ONE = """
import sys, torch, torch.distributed as dist, jupyter_gpushare as gpushare
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
held = []
net.module.register_forward_pre_hook(lambda module, args: held.append(session.holding))
with gpushare.session(name="one", device="host") as session:
    for _ in range(4):
        net(torch.ones(64, 64)).sum().backward()
assert held == [True] * 4, held
del net  # before its group, as PyTorch wants it
dist.destroy_process_group()
"""


def process(program: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd="/")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def start(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts processes, whose turns end at each boundary where another session waits."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "1e-6")
    with maker(process, kill) as start:
        yield start


def pair(start: Start, folder: Path, shares: str, first: str) -> list[subprocess.Popen[str]]:
    folder.mkdir()
    return [start(MEMBER, rank, folder, shares, first) for rank in range(2)]


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return its output on both streams."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return out, err


def told(pair: list[subprocess.Popen[str]]) -> tuple[list[Any], list[str]]:
    """Return the result of each member, and the text that its user sees."""
    said = [ended(process) for process in pair]
    return [json.loads(out.splitlines()[-1]) for out, _ in said], [err for _, err in said]


def results(members: list[Any]) -> list[Any]:
    return [(member["losses"], member["weights"]) for member in members]


def held(members: list[Any], phase: str) -> list[Any]:
    """Whether each member had a turn in all iterations, or in none."""
    return sorted(member["turns"].get(phase) for member in members)


@pytest.mark.parametrize(
    ("first", "neighbours"),
    [("sharing first", 1), pytest.param("group first", 0, marks=pytest.mark.thorough)],
)
def test_a_process_group_on_one_device_trains_to_the_same_bits_as_without_sharing(
    start: Start, tmp_path: Path, first: str, neighbours: int
) -> None:
    plain, _ = told(pair(start, tmp_path / "plain", "does not share", first))
    beside = [start(NEIGHBOUR) for _ in range(neighbours)]
    shared, said = told(pair(start, tmp_path / "shared", "shares", first))
    for neighbour in beside:
        ended(neighbour)

    assert results(shared) == results(plain)
    for phase in ["together", "in explicit iterations", "together again"]:
        assert held(shared, phase) == [[False], [True]], phase
    assert held(shared, "alone again") == [[True], [True]]
    # One has turned sharing off: the other continues without turns until the group has ended.
    assert [member["turns"].get("without the one that took the turns") for member in shared].count(
        [False]
    ) == 1
    assert [member["turns"].get("alone at last") for member in shared].count([True]) == 1
    assert sum(err.count(JOINED) for err in said) == 2  # one member of each group, once
    assert "outside of the shared lane" not in "".join(said)


def test_a_process_group_of_one_takes_turns_as_before(start: Start, tmp_path: Path) -> None:
    assert JOINED not in ended(start(GROUP_OF_ONE, tmp_path / "group"))[1]
