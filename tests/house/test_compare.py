"""docs/results/evidence.md: its comparison does what it says, with real processes, and its other
statements are true at seeds that it has not used."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SEEDS = range(1000, 1004)
ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RUNS = """
import importlib
import json
from evidence.contest import contest, ways
from evidence.contest.notebooks import Notebook

pair = [Notebook("a", 32, (8, 8)), Notebook("b", 32, (8, 8))]
runs = {way.name: contest.run(way, pair, 1 << 40, 0.002) for way in ways.WAYS}
print(json.dumps({name: run.diaries for name, run in runs.items()}))
"""


@pytest.fixture(scope="module")
def salus() -> Iterator[ModuleType]:
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("evidence.salus")


@pytest.fixture(scope="module")
def diaries() -> Any:
    """Return iterations and cells of two notebooks that train in each way, without a limit."""
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([sys.executable, "-c", RUNS], env=environment, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def overlaps(way: dict[str, Any]) -> int:
    """Return pairs of iterations of two notebooks that were at the same time."""
    a, b = (notebook[0] for notebook in way.values())
    return sum(one[0] < other[1] and other[0] < one[1] for one in a for other in b)


@pytest.mark.thorough
def test_all_notebooks_do_all_their_iterations_in_each_way(diaries: Any) -> None:
    assert len(diaries) == 5
    for way in diaries.values():
        assert [len(iterations) for iterations, _ in way.values()] == [16, 16]
        assert [len(cells) for _, cells in way.values()] == [2, 2]


@pytest.mark.system
@pytest.mark.parametrize("way", ["stock PyTorch, all at once", "lock with a quantum"])
def test_iterations_overlap_at_once_and_where_a_lock_stops_them(way: str, diaries: Any) -> None:
    assert overlaps(diaries[way]) > 0


@pytest.mark.system
def test_one_at_a_time_begins_when_the_one_before_has_ended(diaries: Any) -> None:
    a, b = diaries["one notebook at a time"].values()
    assert a[1][-1][1] <= b[0][0][0]


@pytest.mark.system
def test_with_a_lock_file_a_cell_runs_alone(diaries: Any) -> None:
    way = diaries["lock file for each cell"]
    assert overlaps(way) == 0
    a, b = (iterations for iterations, _ in way.values())
    for cell in (a[:8], a[8:]):
        assert not any(cell[0][0] < began < cell[-1][1] for began, _ in b)


def test_the_readme_quotes_rows_of_the_page_and_nothing_else(salus: ModuleType) -> None:
    readme, page = salus.document.README.read_text(), salus.document.PAGE.read_text()
    rows = salus.document.quoted(readme)
    assert len(rows) == 3
    assert set(rows) <= set(page.splitlines())


# --- other seeds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_late_comers_share_evenly_in_every_window(seed: int, salus: ModuleType) -> None:
    shares = [parts for _, parts in salus.windows(seed) if len(parts) > 1]
    assert min(map(salus.jain, shares)) > 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_no_policy_exceeds_the_capacity(seed: int, salus: ModuleType) -> None:
    results = salus.hundred_jobs(1.5, seed)
    assert max(result.peak for result in results.values()) <= 1
    assert results["srtf"].completion < results["fair"].completion < results["fifo"].completion


def test_lanes_prevent_the_deadlock_of_taking_memory_step_by_step(salus: ModuleType) -> None:
    has = salus.naive()
    assert sum(has) == 12  # nothing is free
    assert max(has) < 8  # and neither has what it needs
    assert salus.lanes_finish() == [pytest.approx(20, abs=0.5)] * 2


def test_all_inference_sessions_are_admitted_to_one_device(salus: ModuleType) -> None:
    admitted, promised = salus.inference()
    assert admitted == 42
    assert promised == pytest.approx(14.0 * 2**30, rel=0.01)


@pytest.mark.parametrize(
    ("job", "lanes_expected"), [("vae_64", 574), ("superres_128", 14), ("resnet50_50", 2)]
)
def test_hyper_parameter_packing_gives_exactly_this_number_of_lanes(
    salus: ModuleType, job: str, lanes_expected: int
) -> None:
    assert salus.lanes_of(job) == lanes_expected


@pytest.mark.system
def test_more_jobs_than_are_admitted_gain_as_much_by_packing(salus: ModuleType) -> None:
    assert salus.gain_of("resnet50_50", 0.42, 28) == pytest.approx(2, abs=0.05)
    assert salus.gain_of("resnet50_50", 0.42, 28, lanes=0) > 1.9
