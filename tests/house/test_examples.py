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

from ..violations import ROOT, expect_none

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy"}
SHARING = ["%load_ext jupyter_gpushare", "%gpushare on"]


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cnn", "mlp_gan", "transformer"]


def test_notebooks_differ_from_plain_pytorch_by_one_cell() -> None:
    for path in NOTEBOOKS:
        ours, *theirs = map(source, code_cells(path))
        assert ours.splitlines() == SHARING, path
        expect_none(f"{path.name}: {code}" for code in theirs if "gpushare" in code or "%" in code)


def test_notebooks_are_committed_without_their_results() -> None:
    expect_none(
        f"{path.name}: {source(cell)}"
        for path in NOTEBOOKS
        for cell in code_cells(path)
        if cell["outputs"] or cell["execution_count"] is not None
    )


def test_notebooks_fetch_nothing() -> None:
    expect_none(path.name for path in NOTEBOOKS if "://" in path.read_text())


def test_notebooks_read_bits_of_the_host_s_memory_alone() -> None:
    """The address of a tensor on a GPU means nothing to Python."""
    for path in NOTEBOOKS:
        whole = "\n".join(map(source, code_cells(path)))
        read = set(re.findall(r"(\w+)\.data_ptr\(\)", whole))
        assert read, path
        on_host = re.findall(r"^(\w+) = .*\.cpu\(\)$", whole, re.MULTILINE)
        expect_none(f"{path.name}: {name}" for name in read - {*on_host})


# --- other frameworks -----------------------------------------------------------------------------


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
