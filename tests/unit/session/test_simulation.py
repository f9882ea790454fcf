"""The results of the simulator agree with real processes at a real broker."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from ...violations import ROOT


@pytest.fixture(scope="module")
def agreement() -> Iterator[ModuleType]:
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("evidence.agreement")


@pytest.mark.system
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("fifo", marks=pytest.mark.thorough),
        pytest.param("srtf", marks=pytest.mark.thorough),
        "fair",
    ],
)
def test_real_notebooks_end_in_the_order_that_is_simulated(
    policy: str, agreement: ModuleType
) -> None:
    real = agreement.measured(policy)
    simulated = agreement.simulated(policy, agreement.ITERATION_SECONDS)
    assert sorted(real, key=real.__getitem__) == sorted(simulated, key=simulated.__getitem__)
