"""The fault matrix: a fault at one party costs the others nothing."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from . import jobs  # noqa: F401
from .matrix import ROWS, Matrix, Outcome, Row, load
from .rows import (  # noqa: F401  their rows
    brokers,
    clocks,
    co_lanes,
    gpus,
    hosts,
    interrupts,
    kernels,
    memory,
    notebooks,
    rulebooks,
    threads,
    users,
)
from .scene import Scene

pytestmark = pytest.mark.system

PAGE = Path(__file__).resolve().parents[3] / "docs" / "results" / "reliability.md"


def parameter(row: Row) -> object:
    place = row.happens.__module__.rpartition(".")[2]
    return pytest.param(row, id=f"{place}-{row.name}")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("row", [parameter(row) for row in ROWS])
def test_nothing_is_lost(row: Row, request: pytest.FixtureRequest, matrix: Matrix) -> None:
    if not (row.is_quick or request.config.getoption("reliability", None)):
        pytest.skip("`make faults` has it")
    given = [request.getfixturevalue(name) for name in row.fixtures]
    scene: Scene = request.getfixturevalue("scene")
    began = time.monotonic()
    try:
        since = row.happens(scene, *row.given, *given) or began
    except pytest.skip.Exception as reason:
        matrix.untried.append((row, str(reason)))
        raise
    except Exception as error:
        lost = (f"{type(error).__name__}: {error}",)
        matrix.outcomes.append(Outcome(row, lost, None, load()))
        raise
    lost = tuple(scene.losses(since))
    outcome = Outcome(row, lost, scene.recovered_seconds, load())
    matrix.outcomes.append(outcome)
    assert not lost
    if request.config.getoption("reliability", None):
        assert not outcome.breaks_promise


def test_the_matrix_has_at_least_80_rows_that_differ() -> None:
    assert len({row.breaks for row in ROWS}) == len(ROWS) >= 80
    assert len({(row.happens, row.given) for row in ROWS}) == len(ROWS)


def test_the_page_has_each_row_and_none_lost_anything(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("reliability", None):
        pytest.skip("this run writes the page")
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \| (?:[0-9.]+|never) \|", PAGE.read_text(), re.M))
    assert rows.keys() == {row.breaks for row in ROWS}, "`make faults` writes the page again"
    assert {breaks: lost for breaks, lost in rows.items() if lost != "nothing"} == {}
