"""docs/explanation/security.md: the tests that it names exist, and forbidden calls are nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explanation" / "security.md"
PACKAGES = ("jupyter_gpushare", "server_ext", "kernel_ext")
NAMED = re.findall(
    r"`(tests/[\w/]+\.(?:py|ts)|labextension/[\w/.]+\.ts)::([^`]+)`", PAGE.read_text()
)
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN = MODULES | {"eval", "exec", "compile", "__import__", "shell="}
# In processes of a user, which unpickle what the same user has pickled: a job runs the cell that
# was submitted, and its notebook reads the result.
JOBS = "jupyter_gpushare/client/jobs/"
ALLOWED = {
    JOBS + "pickled.py": {"cloudpickle"},
    JOBS + "call.py": {"pickle", "compile", "exec"},
    JOBS + "job.py": {"pickle"},
}
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: str(part).rpartition("/")[2])
def test_a_test_that_the_page_names_is_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    assert f"def {name}(" in text or f"it('{name}'" in text


def test_each_row_of_the_page_names_a_test() -> None:
    """This holds for all but the first table, which says what the others show."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    held = rows[rows.index("| what holds it | tests |") :]
    said = [row for row in held if not row.startswith(("| ---", "| what"))]
    assert len(said) > 20
    assert [row for row in said if "::" not in row] == []


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(file: Path) -> None:
    tree = ast.parse(file.read_text())
    found = FORBIDDEN & {*imported(tree), *called(tree)}
    assert found == ALLOWED.get(str(file.relative_to(ROOT)), set())


@pytest.mark.parametrize(
    "code", ["import pickle", "from dill import loads", "eval('1')", "run('ls', shell=True)"]
)
def test_a_forbidden_call_is_found(code: str) -> None:
    tree = ast.parse(code)
    assert FORBIDDEN & {*imported(tree), *called(tree)}
