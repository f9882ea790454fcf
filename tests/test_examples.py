"""The examples are plain PyTorch: two lines of ours in one cell, nothing fetched or stored."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.settings import Settings

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy"}
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_bits_of_the_host_s_memory_alone(path: Path) -> None:
    """The address of a tensor on a GPU means nothing to Python."""
    whole = "\n".join(map(source, code_cells(path)))
    read = set(re.findall(r"(\w+)\.data_ptr\(\)", whole))
    assert read
    for name in read:
        assert re.search(rf"^{name} = .*\.cpu\(\)$", whole, re.MULTILINE), name


# --- other frameworks -----------------------------------------------------------------------------


def test_there_is_one_for_each_framework() -> None:
    there = sorted(path.name for path in (EXAMPLES / "frameworks").iterdir())
    assert there == sorted(f"{module}_turns.py" for module in FRAMEWORKS)


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_an_example_of_a_framework_runs_or_says_in_a_sentence_why_not(
    settings: Settings, module: str
) -> None:
    program = EXAMPLES / "frameworks" / f"{module}_turns.py"
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    name = FRAMEWORKS[module]
    if importlib.util.find_spec(module) is None:
        said = f"{name} is not installed here, so there is nothing to run: pip install {module}"
    elif module == "cupy":
        said = "CuPy computes on GPUs alone, and no GPU is visible here"
    else:
        said = f"100 turns of {name} on host, the last loss"
    assert run.stdout.startswith(said)
    assert run.stdout.count("\n") == 1


TURN = """
import sys, jupyter_gpushare as gpushare
with gpushare.turn() as session:
    assert session.holding
assert not {"torch", "jax", "tensorflow", "cupy", "IPython"} & sys.modules.keys()
"""


def test_a_turn_needs_no_framework(settings: Settings) -> None:
    subprocess.run([sys.executable, "-c", TURN], check=True)
