"""Which sessions are squeezed, how far, and which are admitted for that."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Demand, Rules, SessionSpec, SqueezeOption

from ..looks import granted
from ..scheduler import DEVICE, Scheduler

Sizes = tuple[tuple[int, float], ...]
GAN: Sizes = ((60, 1.0), (40, 1.08), (20, 1.3))


def demand(persistent: int, *sizes: tuple[int, float]) -> Demand:
    options = [SqueezeOption(*size) for size in sizes]
    return Demand(persistent, sizes[0][0], options=options)


def spec(persistent: int, *sizes: tuple[int, float], **more: object) -> SessionSpec:
    return SessionSpec("u", demand=demand(persistent, *sizes), **{"bears": 1.1, **more})


def squeezed(it: Scheduler) -> dict[str, int]:
    assert it.is_valid() == ""
    return {state.id: state.squeezed for state in it.snapshot(0).sessions if state.lane is not None}


# --- the rule -------------------------------------------------------------------------------------


def test_only_what_the_floor_makes_impossible_is_refused_with_the_numbers() -> None:
    it = Scheduler(100)
    with pytest.raises(OverflowError, match="50, 60, 100, True"):
        it.open(0, "a", spec(50, (200, 1.0), (60, 1.4)))
    assert it.snapshot(0).sessions == []


@pytest.mark.parametrize(
    "sizes",
    [
        ((60, 1.1),),
        ((60, 1.0), (60, 1.1)),
        ((60, 1.0), (50, 1.2), (40, 1.1)),
        ((60, 1.0), (50, float("nan"))),
        ((60, 1.0), (-1, 1.1)),
    ],
)
def test_wrong_options_are_refused(sizes: Sizes) -> None:
    with pytest.raises(ValueError, match="option"):
        Scheduler(100).open(0, "a", spec(20, *sizes))


# --- turns ----------------------------------------------------------------------------------------


def test_two_that_run_in_lanes_of_their_own_both_end_for_one_that_needs_them_squeezed() -> None:
    it = Scheduler(100, "fair", Rules(running_lanes=2, aging=0))
    for id in "ab":
        it.open(0, id, spec(10, (40, 1.0), (20, 1.05)))
        it.request(0, id, 1)
    it.open(0, "c", spec(55, (10, 1.0)))
    it.request(0, "c", 1)
    assert sorted(asked.session for asked in it.assign(1).yields) == ["a", "b"]
    it.finish(1, "a", 1)
    assert granted(it.request(1, "a", 2)) == []
    assert "c" in granted(it.finish(1, "b", 1))
    assert squeezed(it) == {"a": 20, "b": 20, "c": 0}


def test_a_squeezed_session_whose_options_have_grown_keeps_a_place() -> None:
    it = Scheduler(100)
    it.open(0, "a", spec(20, *GAN))
    it.request(0, "a", 1)
    it.open(0, "b", spec(30, (10, 1.0)))
    it.request(0, "b", 1)
    it.assign(1)
    it.finish(1, "a", 1)
    it.request(1, "a", 2)
    it.finish(2, "b", 1)
    it.report(2, "a", 1, demand(20, (62, 1.0), (42, 1.08), (22, 1.3)), None)
    assert it.squeezed(DEVICE, "a") == 42


# --- a turn that is brought back ------------------------------------------------------------------


def test_one_that_comes_back_unsqueezed_is_counted_whole() -> None:
    """If that does not fit beside the others, nothing else starts until its turn has ended."""
    it = Scheduler(100)
    it.set_recovering(0, True)
    it.open(0, "b", spec(40, (10, 1.0)))
    decision = it.open(0, "a", spec(20, *GAN, turn=1, holding=True))
    assert squeezed(it) == {"b": 0}
    assert [asked.session for asked in decision.yields] == ["a"]
    it.set_recovering(0.1, False)
    assert not it.request(0.2, "b", 1).grants
    assert granted(it.finish(0.3, "a", 1)) == ["b"]


def test_no_negative_number_of_bytes_is_brought_back() -> None:
    with pytest.raises(ValueError, match="squeezed iteration must not be negative"):
        Scheduler(100).open(0, "a", spec(20, *GAN, turn=1, holding=True, squeezed_bytes=-1))
