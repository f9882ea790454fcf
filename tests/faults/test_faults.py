"""The fault matrix: whatever breaks, nothing of the others is lost."""

from __future__ import annotations

import pytest

from . import brokers, hosts, interrupts, kernels  # noqa: F401  whose rows are in the matrix then
from .matrix import ROWS, Matrix, Outcome, Row
from .scene import Scene


def parameter(row: Row) -> object:
    marks = [pytest.mark.xfail(reason=row.loses, strict=True)] if row.loses else []
    return pytest.param(row, id=row.happens.__name__, marks=marks)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("row", [parameter(row) for row in ROWS])
def test_nothing_is_lost(row: Row, request: pytest.FixtureRequest, matrix: Matrix) -> None:
    if not (row.is_quick or request.config.getoption("reliability", None)):
        pytest.skip("`make faults` has it")
    given = [request.getfixturevalue(name) for name in row.fixtures]
    scene: Scene = request.getfixturevalue("scene")
    try:
        since = row.happens(scene, *given)
    except Exception as error:
        matrix.outcomes.append(Outcome(row, (f"{type(error).__name__}: {error}",), None))
        raise
    lost = tuple(scene.losses(since))
    matrix.outcomes.append(Outcome(row, lost, scene.recovered_seconds))
    assert not lost
