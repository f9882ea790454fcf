"""The statements of docs/results/evidence.md are true at seeds that it has not used."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from .test_compare import imported

SEEDS = range(1000, 1004)


@pytest.fixture(scope="module")
def salus() -> Iterator[ModuleType]:
    pytest.importorskip("matplotlib")
    yield from imported("salus")


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
    assert promised <= 16 * 10**9


@pytest.mark.system
def test_more_jobs_than_are_admitted_gain_as_much_by_packing(salus: ModuleType) -> None:
    assert salus.gain_of("resnet50_50", 0.42, 28) == pytest.approx(2, abs=0.05)
    assert salus.gain_of("resnet50_50", 0.42, 28, lanes=0) > 1.9
