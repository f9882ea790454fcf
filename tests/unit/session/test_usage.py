"""The reports of a session about its iterations: their curve, and how many remain."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tqdm import tqdm

from jupyter_gpushare.client import progress as remaining
from jupyter_gpushare.client.process_groups import Membership
from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.usage import CURVE_SECONDS, Usage
from jupyter_gpushare.wire.demand import Curve, Squeezing

RISES_AND_FALLS = Curve(0.1, 1 << 20, (20, 60, 100, 60, 20))


class Known(WholeProcess):
    shown: Curve | None = None

    def curve(self) -> Curve | None:
        return self.shown


@pytest.fixture
def memory() -> Known:
    return Known()


@pytest.fixture
def usage(memory: Known) -> Usage:
    owner: Any = SimpleNamespace(memory=memory)
    return Usage(owner, Membership("this process"), 0.5, None)


def reported(usage: Usage, now: float) -> Curve | None:
    return usage.report(now, True).curve


def test_a_curve_is_reported_when_it_is_known_and_again_when_it_has_changed(
    memory: Known, usage: Usage
) -> None:
    assert reported(usage, 0) is None
    memory.shown = RISES_AND_FALLS
    assert reported(usage, 1) == RISES_AND_FALLS
    assert reported(usage, 100) is None  # the broker knows it
    usage.was_registered()
    assert reported(usage, 101) == RISES_AND_FALLS  # a new one does not
    for changes in ({"seconds": 0.2}, {"peak_bytes": 1 << 21}, {"percent": (20, 60, 100, 80, 20)}):
        memory.shown = replace(RISES_AND_FALLS, **changes)
        usage.was_registered()
        assert reported(usage, 200) == memory.shown


def test_each_report_says_how_far_iterations_are_squeezed(memory: Known, usage: Usage) -> None:
    assert usage.report(0, True).squeezing is None
    for squeezing in (Squeezing(asked_bytes=7), None):
        memory.squeezing = squeezing
        assert usage.report(1, True).squeezing == squeezing


def test_small_changes_of_a_curve_are_not_reported(memory: Known, usage: Usage) -> None:
    memory.shown = RISES_AND_FALLS
    assert reported(usage, 0) == RISES_AND_FALLS
    memory.shown = Curve(0.103, (1 << 20) + (1 << 14), (22, 58, 100, 64, 20))
    assert reported(usage, 100) is None


def test_curves_are_reported_every_few_seconds_at_most(memory: Known, usage: Usage) -> None:
    times = []
    for now in range(60):
        memory.shown = replace(RISES_AND_FALLS, seconds=1.0 + now)
        if reported(usage, now) is not None:
            times.append(now)
    assert times == [*range(0, 60, int(CURVE_SECONDS))]


# --- remaining iterations, read off the progress bars that run ------------------------------------


def bar(length: int | None) -> tqdm:  # type: ignore[type-arg]
    return tqdm(total=length, file=io.StringIO())


def test_a_bar_tells_the_rest_of_it() -> None:
    assert remaining.from_tqdm() is None
    with bar(100) as batches:
        batches.update(30)
        assert remaining.from_tqdm() == (70, 100)
    with bar(None):
        assert remaining.from_tqdm() is None


def test_the_end_of_a_loop_is_to_be_reported_too(usage: Usage) -> None:
    with bar(100) as batches:
        batches.update(30)
        usage.report(0.0, holding=False)
        assert usage.is_reported
    assert not usage.is_reported
    usage.report(1.0, holding=False)
    assert usage.is_reported


def test_bars_in_bars_multiply() -> None:
    with bar(5) as epochs, bar(100) as batches:
        epochs.update(2)
        batches.update(20)
        assert remaining.from_tqdm() == (2 * 100 + 80, 5 * 100)
