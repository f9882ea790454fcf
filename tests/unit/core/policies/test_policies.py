"""The contract of a policy, once for all of them, and then the promises of each one."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Demand, Rules
from jupyter_gpushare.reasons import sentence

from ..plain import GB, Job, Simulation
from ..scheduler import POLICIES

ONE_LANE = Rules(running_lanes=1)


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lanes", [0, 1, 2])
def test_no_session_starves(policy: str, lanes: int) -> None:
    jobs = [
        Job(f"j{i}", user=f"u{i % 3}", start=i / 7, iteration=0.02 * (i + 1), cell=30, cells=3)
        for i in range(6)
    ]
    run = Simulation(jobs, policy, rules=Rules(running_lanes=lanes)).run(until=200)
    assert all(job.done_at is not None for job in run.jobs.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_weight_counts(policy: str) -> None:
    """The heavier one of two otherwise equal sessions is served sooner or more."""
    light = Job("light", cell=100, cells=1, declares=True)
    heavy = Job("heavy", cell=100, cells=1, weight=3.0, declares=True)
    other = Job("other", cell=20, cells=1, declares=True)
    jobs = {"fifo": [other, light, heavy]}.get(policy, [light, heavy])
    run = Simulation(jobs, policy, rules=ONE_LANE).run(until=60)
    assert run.jobs["heavy"].done_at < run.jobs["light"].done_at


# --- fair -----------------------------------------------------------------------------------------


def test_under_fair_used_time_is_forgotten() -> None:
    """Time that was used long ago counts less: the debt halves with each half-life."""
    rules = Rules(half_life=10)
    first = Job("first", cell=10**9)
    run = Simulation([first, Job("second", start=100)], "las", rules=rules).run(until=100)
    waiting = run.scheduler.snapshot(100).sessions
    assert waiting[0].device_seconds == pytest.approx(100, abs=0.1)
    run.run(until=400)
    assert run.jobs["second"].seconds > 0.45 * 300
    assert run.jobs["first"].seconds - 100 > 0.4 * 300


# --- srtf, pack -----------------------------------------------------------------------------------


def test_srtf_says_when_the_remaining_work_is_unknown() -> None:
    run = Simulation([Job("a"), Job("b")], "srtf").run(until=1)
    waiting = [s for s in run.scheduler.snapshot(1).sessions if s.state == "waiting"]
    assert sentence(waiting[0].why, str).endswith(
        "remaining work unknown: ordered by service so far"
    )


def test_pack_runs_as_many_at_once_as_memory_allows() -> None:
    jobs = [Job(f"j{i}", demand=Demand(GB, 4 * GB)) for i in range(4)]
    run = Simulation(jobs, "pack", capacity=16 * GB, rules=Rules(running_lanes=9)).run(until=20)
    holders = [lane.holder for lane in run.scheduler.snapshot(20).lanes]
    assert len(holders) == 3
    assert None not in holders
    assert sum(job.seconds for job in jobs) == pytest.approx(60, abs=1)
    assert all(job.seconds > 9 for job in jobs)


def test_lanes_merge_and_spread_when_the_policy_changes() -> None:
    jobs = [Job(f"j{i}", demand=Demand(GB, 2 * GB)) for i in range(4)]
    run = Simulation(jobs, "fair").run(until=3)
    assert len(run.scheduler.snapshot(3).lanes) == 1
    run.enact(run.scheduler.set_policy(3, "pack"))
    run.run(until=30)  # sessions that gain by it have a lane each by now
    assert [len(lane.members) for lane in run.scheduler.snapshot(30).lanes] == [1, 1, 1, 1]
    run.enact(run.scheduler.set_policy(30, "fair"))
    run.run(until=31)
    assert len(run.scheduler.snapshot(31).lanes) == 1
    run.enact(run.scheduler.set_running_lanes(31, 2))
    run.run(until=32)
    assert len([lane for lane in run.scheduler.snapshot(32).lanes if lane.holder]) == 2
