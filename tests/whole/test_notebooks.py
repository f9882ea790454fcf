"""Real kernels train side by side through a real broker; nothing changes but the time it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpushare.wire.snapshot import SessionView

from ..polling import until
from ..programs.cells import BODIES, HEAD, program
from .conftest import last_json, results_alone

if TYPE_CHECKING:
    from .conftest import Notebook

pytestmark = pytest.mark.system

TRAINING = program("zero_grad_first")


@pytest.fixture(scope="module")
def alone() -> Any:
    """Results of a training in a plain interpreter, without sharing."""
    return results_alone({"alone": TRAINING})["alone"]


@pytest.mark.parametrize("count", [2, 8])
def test_many_kernels_train_at_once_and_each_gets_its_own_result(
    notebook: Callable[..., Notebook], alone: Any, count: int
) -> None:
    notebooks = [notebook(f"n{number}") for number in range(count)]
    cells = [each.start(TRAINING) for each in notebooks]
    for each, cell in zip(notebooks, cells, strict=True):
        assert last_json(each.end(cell)) == alone


def test_a_model_made_before_sharing_trains_the_same(
    notebook: Callable[..., Notebook], alone: Any
) -> None:
    late = notebook("late", share=False, imports=True)
    late.run(HEAD)
    late.share()
    assert last_json(late.run(TRAINING.removeprefix(HEAD))) == alone


def test_remaining_iterations_and_seconds_are_read_off_a_progress_bar(
    notebook: Callable[..., Notebook],
    sessions: Callable[[], dict[str, SessionView]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_REPORT_SECONDS", "0.01")
    ours = notebook("ours")
    ours.run(HEAD + "\nimport time\nfrom tqdm import tqdm")
    body = BODIES["zero_grad_first"].replace("data * 5", "tqdm(data * 100)")
    cell = ours.start(body + "\n    time.sleep(0.005)")
    while (left := sessions()["ours"].remaining_iterations) in (None, 800):
        pass
    assert 0 < left < 800
    until(lambda: sessions()["ours"].remaining_seconds is not None)
    ours.end(cell)
