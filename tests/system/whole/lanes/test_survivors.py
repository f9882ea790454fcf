"""Survivors of an iteration when there is no room for them outside of the lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....conftest import Sessions
from ..conftest import Notebook, Notebooks

pytestmark = pytest.mark.system

CAPACITY = 100 << 20
MODEL = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)])
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(16, 8, 128, 128)  # 8 MiB, and as much after each layer
"""
TRAIN = """
for _ in range({steps}):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
"""
KEEP = "net(x)"  # displayed, so IPython keeps it, with all that its backward would need
BEFORE = "before = net(x).detach().numpy().copy()"
SAME = "print((list(Out.values())[-1].detach().numpy() == before).all())"


@pytest.fixture(autouse=True)
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(CAPACITY))


def errors(notebook: Notebook, cell: str) -> str:
    return notebook.shows(notebook.start(cell)).stderr


def test_a_notebook_is_paged_out_rather_than_keep_more_memory_than_there_is(
    notebook: Notebooks, sessions: Sessions
) -> None:
    keeper, other = notebook("keeper"), notebook("other")
    keeper.run(MODEL + TRAIN.format(steps=5) + BEFORE)
    said = errors(keeper, KEEP)
    assert "keeps its turn until another one waits for it" in said
    assert "%gpushare tidy" in said
    assert sessions()["keeper"].state == "running"
    other.run(MODEL + TRAIN.format(steps=5))
    assert sessions()["keeper"].state == "paged_out"
    assert keeper.run(SAME) == "True\n"
    assert "keeps" not in errors(keeper, "%gpushare tidy")
    keeper.run(TRAIN.format(steps=1))
    assert {view.state for view in sessions().values()} <= {"idle", "paged_out"}


def test_results_that_have_room_cost_no_session_the_turn(
    notebook: Notebooks, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(10 * CAPACITY))
    keeper = notebook("keeper")
    keeper.run(MODEL + TRAIN.format(steps=5))
    assert errors(keeper, KEEP) == ""
    assert sessions()["keeper"].state == "idle"
    assert sessions()["keeper"].persistent_bytes > 40 << 20


def test_results_that_a_quota_does_not_allow_keep_the_turn_and_the_notebook_is_told_why(
    notebook: Notebooks, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[quotas]\npersistent = "40 MiB"')
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(rules))
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(10 * CAPACITY))
    keeper = notebook("keeper")
    keeper.run(MODEL + TRAIN.format(steps=5))
    said = errors(keeper, KEEP)
    assert "where the rule persistent in [quotas] allows 40.0 MiB" in said
    assert "keeps its turn until another one waits for it" in said
    assert sessions()["keeper"].state == "running"
    notebook("other").run(MODEL + TRAIN.format(steps=5))
    assert sessions()["keeper"].state == "paged_out"
