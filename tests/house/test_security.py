"""docs/explanation/security.md: the tests that it names exist, and forbidden calls are nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..violations import ROOT, expect_none, named

PAGE = ROOT / "docs" / "explanation" / "security.md"
PACKAGES = ("jupyter_gpushare", "server_ext", "kernel_ext")
NAMED = re.findall(
    r"`(tests/[\w/]+\.(?:py|ts)|labextension/[\w/.]+\.ts)::([^`]+)`", PAGE.read_text()
)
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN = MODULES | {"eval", "exec", "compile", "__import__", "shell="}
# These run in processes of a user and unpickle what the same user has pickled: a job runs the cell
# that was submitted, and its notebook reads the result.
JOBS = "jupyter_gpushare/jobs/"
ALLOWED = {
    JOBS + "pickled.py": {"cloudpickle"},
    JOBS + "call.py": {"pickle", "compile", "exec"},
    JOBS + "job.py": {"pickle"},
}
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def test_the_tests_that_the_page_names_are_there() -> None:
    texts = {file: (ROOT / file).read_text() for file, _ in NAMED if (ROOT / file).exists()}
    expect_none(
        f"{file}::{name} is not there"
        for file, name in NAMED
        if not any(begins in texts.get(file, "") for begins in (f"def {name}(", f"it('{name}'"))
    )


def test_each_row_of_the_page_names_a_test() -> None:
    """This holds for all but the first table, which says what the others show."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    held = rows[rows.index("| what holds it | tests |") :]
    said = [row for row in held if not row.startswith(("| ---", "| what"))]
    assert len(said) > 20
    assert [row for row in said if "::" not in row] == []


def forbidden(source: str) -> list[tuple[int, str]]:
    """Return lines and names."""
    tree = ast.parse(source)
    return [found for found in (*imported(tree), *called(tree)) if found[1] in FORBIDDEN]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def called(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield node.value.lineno, "shell="


def test_nothing_is_unpickled_or_evaluated() -> None:
    found = {named(file): forbidden(file.read_text()) for file in SOURCES}
    expect_none(
        f"{file}:{line}: {name}"
        for file, names in found.items()
        for line, name in names
        if name not in ALLOWED.get(file, ())
    )
    assert {file: {name for _, name in found[file]} for file in ALLOWED} == ALLOWED


def test_forbidden_calls_are_found() -> None:
    samples = ("import pickle", "from dill import loads", "eval('1')", "run('ls', shell=True)")
    expect_none(sample for sample in samples if not forbidden(sample))
