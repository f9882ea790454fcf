"""Notebooks of a real Jupyter server share the fake GPU, as a user starts sharing in a cell."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
from server import Notebook, Server

SECONDS = 800  # of all cells; a safety net
SHARING = "%load_ext jupyter_gpushare\n%gpushare on --device cuda:0"
MODEL = """
import hashlib, torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
losses, inside = [], []
digest = lambda values: hashlib.sha256(repr(values).encode()).hexdigest()
model = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * 16 * 16, 10)),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
pictures, kinds = torch.randn(16, 3, 32, 32).cuda(), torch.randint(0, 10, (16,)).cuda()
"""
# Notes which activations lie in the lane, without effect on the results.
LOOK = """
from jupyter_gpushare import _core

model[0].register_forward_hook(lambda *of: inside.append(_core.CudaLane.owns(of[2].data_ptr())))
"""
TRAIN = """
for step in range(60):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), kinds)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
RESULT = {
    "losses": "[loss.hex() for loss in losses]",
    "weights": "digest([p.tolist() for p in model.parameters()])",
}


@pytest.fixture
def home(socket_directory: Path) -> Path:
    """The folder of a Jupyter server. Turns end at each boundary where another session waits."""
    given = {"GpuShareExtension": {"quantum_seconds": 1e-6, "half_life_seconds": 1e-6}}
    (socket_directory / "notebooks").mkdir()
    (socket_directory / "config").mkdir()
    (socket_directory / "config" / "jupyter_server_config.json").write_text(json.dumps(given))
    return socket_directory


@pytest.fixture
def server(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("FAKE_CUDA_HOST", tmp_path.name)
    server = Server(home)
    yield server
    server.stop()


async def opened(server: Server, name: str, *cells: str) -> Notebook:
    notebook = Notebook(server, name, lambda text: None)
    await notebook.open()
    for cell in cells:
        await notebook.run(cell)
    return notebook


async def seen(server: Server) -> dict[str, Any]:
    """The sessions on the GPU by name, as the server shows them."""
    (device,) = (each for each in (await server.snapshot())["devices"] if each["name"] == "cuda:0")
    return {Path(each["name"]).stem: each for each in device["sessions"]}


def test_notebooks_train_in_turns_and_come_to_what_one_comes_to_without_sharing(
    server: Server,
) -> None:
    async def compare() -> None:
        await server.ready()
        plain = await opened(server, "plain", MODEL, TRAIN)
        shared = [await opened(server, name, SHARING, MODEL, LOOK) for name in ("ada", "bob")]
        shared.append(await opened(server, "eve", MODEL, SHARING, LOOK))  # the model comes first
        await asyncio.gather(*(notebook.run(TRAIN) for notebook in shared))
        expected = await plain.run("", **RESULT)
        for notebook in shared:
            assert await notebook.run("", **RESULT) == expected
            assert (await notebook.run("", inside="inside[-1]"))["inside"] == "True"
        sessions = await seen(server)
        assert sessions.keys() == {"ada", "bob", "eve"}
        for each in sessions.values():
            assert each["iterations"] == 60
            assert each["waited_seconds"] > 0

    asyncio.run(asyncio.wait_for(compare(), SECONDS))
