"""A demand is estimated from recent iterations, and never from the first."""

from __future__ import annotations

from jupyter_gpushare.client.torch.demand.estimator import LEARNINGS, Estimator, Iteration
from jupyter_gpushare.wire.demand import Demand

CAPACITY = 1000
SMALL = Iteration(live=100, peak=150, between=100, footprint=0)
LARGE = Iteration(live=100, peak=180, between=120, footprint=0)


def learned(*iterations: Iteration) -> Estimator:
    """An estimator after a first iteration, which counts for nothing, and these."""
    estimator = Estimator()
    for iteration in (LARGE, *iterations):
        estimator.add(iteration, did_fit=True)
    return estimator


def test_the_first_iteration_says_nothing_of_the_demand() -> None:
    assert learned().demand(CAPACITY) is None
    assert learned().needed() == 0
    assert learned(SMALL).demand(CAPACITY) == Demand(100, 50, measured=True)


def test_a_demand_is_the_most_of_each_kind_with_a_margin_for_what_varies() -> None:
    assert learned(SMALL, LARGE).demand(CAPACITY) == Demand(120, 80 + 80 // 5, measured=True)
    assert learned(SMALL, LARGE).demand(120 + 80) == Demand(120, 80, measured=True)
    nearly = LARGE._replace(peak=175)
    assert learned(LARGE, nearly).demand(CAPACITY) == Demand(120, 80 + 5, measured=True)


def test_what_an_iteration_takes_of_its_lane_counts_with_its_holes() -> None:
    assert learned(SMALL._replace(footprint=70)).needed() == 70


def test_the_first_demand_is_news_and_so_is_a_lane_that_was_too_small() -> None:
    estimator = Estimator()
    news = [estimator.add(SMALL, did_fit) for did_fit in (False, True, True, False)]
    assert news == [False, True, False, True]


def test_what_was_learned_before_survivors_were_known_is_forgotten() -> None:
    estimator = learned(LARGE)
    for _ in range(LEARNINGS):
        assert estimator.is_learning
        estimator.forget()
    assert not estimator.is_learning
    assert estimator.add(SMALL, did_fit=True)
    assert estimator.needed() == 50
