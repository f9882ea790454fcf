"""Sessions that always want the next turn, as trainings do, and the time that each gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import Demand, Rules

from .plain import Job, Simulation
from .searches import tries

SECONDS = 60.0
RULES = Rules(running_lanes=1, half_life=1e9)  # nothing is forgotten during the test
SMALL = Demand(10**7, 10**9)
iterations = st.sampled_from([0.004, 0.01, 0.03, 0.1, 0.4, 1.1])  # seconds
weights = st.sampled_from([0.5, 1.0, 2.0, 4.0])


@pytest.mark.system
@tries(25)
@given(loops=st.lists(st.tuples(iterations, weights), min_size=2, max_size=6))
def test_each_session_gets_its_weight_in_time_whatever_its_iterations_take(
    loops: list[tuple[float, float]],
) -> None:
    """Except for two turns, each of which may last one iteration longer than a quantum."""
    jobs = [
        Job(f"n{number}", iteration=iteration, weight=weight, demand=SMALL)
        for number, (iteration, weight) in enumerate(loops)
    ]
    Simulation(jobs, "fair", rules=RULES).run(until=SECONDS)
    total, whole = sum(job.seconds for job in jobs), sum(job.weight for job in jobs)
    bound = 2 * (RULES.quantum + max(job.iteration for job in jobs))
    for job in jobs:
        assert abs(job.seconds - total * job.weight / whole) <= bound
    assert total >= SECONDS - max(job.iteration for job in jobs) - 1e-6
