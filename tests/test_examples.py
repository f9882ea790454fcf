"""The examples are plain PyTorch: two lines of ours in one cell, nothing fetched or stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SHARING = ["%load_ext jupyter_gpushare", "%gpushare on"]


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cnn", "mlp_gan", "transformer"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_differs_from_plain_pytorch_by_one_cell(path: Path) -> None:
    ours, *theirs = map(source, code_cells(path))
    assert ours.splitlines() == SHARING
    assert not [code for code in theirs if "gpushare" in code or "%" in code]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_its_results(path: Path) -> None:
    for cell in code_cells(path):
        assert not cell["outputs"]
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_fetches_nothing(path: Path) -> None:
    assert "://" not in path.read_text()
