"""Two users share a device half and half, whatever one of them does, under every policy.

No iteration is interrupted, and the device does not wait for a session that has nothing to run: so
between two cells of the one, the other may begin an iteration, however long it is. It does not
gain more than that.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpushare._core import Demand, Rules, SessionSpec

from ..plain import GB, Job, Simulation
from ..scheduler import POLICIES, Scheduler
from ..searches import tries

SECONDS = 20.0
SMALL = Demand(GB // 100, GB)
ONE_LANE = Rules(running_lanes=1)
LANES = (1, 2, 0)  # that run at once; 0: as the tuner finds
VICTIMS = {
    "trains": {"iteration": 0.02},
    "runs short cells": {"iteration": 0.02, "cell": 20, "cells": 10**6, "think": 0.0},
}
ATTACKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "weight of 1000": {"weight": 1000.0},
    "12 notebooks": {"count": 12},
    "a new session for each turn": {"renews": True},
    "a new session for each turn, and the old ones stay open": {"renews": True, "stays": True},
    "one iteration left, always": {"claims": True},
    "one cell without end": {"cell": 10**9},
    "all of it": {"count": 12, "weight": 1000.0, "renews": True, "claims": True},
}
ATTACKS["all of it, in groups of their own"] = {**ATTACKS["all of it"], "groups": ("g", "h")}


class Outcome(NamedTuple):
    """`share` is the attackers' part of all device time, and `victim` the part of the 20 s in which
    the other user's notebook ran. With several running lanes it can run all the time, and so have
    half of the device, or less than the attackers' many notebooks, without a loss."""

    share: float
    victim: float

    def is_even(self, owed: float = 0.48) -> bool:
        return self.share <= 0.52 + 1e-9 or self.victim >= owed


def owed(victim: str, iteration: float, boost: float = 0.0) -> float:
    """Return what is owed: half of the device, or all time but for an iteration of another user
    after each cell. If new cells go first, it is an iteration less: after each cell, or once."""
    if "cell" not in VICTIMS[victim]:
        return 0.48 - (iteration / SECONDS if boost else 0)
    seconds = VICTIMS[victim]["iteration"] * VICTIMS[victim]["cell"]
    others = 2 * iteration if boost else iteration
    return min(0.48, SECONDS // (seconds + others) * seconds / SECONDS) - 1e-9


class Duel(Simulation):
    """User `a` is the attacker."""

    names = itertools.count()
    renews = stays = claims = False

    def _request(self, job: Job) -> None:
        if self.renews and job.user == "a" and job.grants:
            self._open_anew(job)
        super()._request(job)

    def _open_anew(self, job: Job) -> None:
        if not self.stays:
            self.enact(self.scheduler.close(self.now, job.id))
        job.id = f"a{next(self.names)}"
        self.jobs[job.id] = job
        spec = SessionSpec("a", group=job.group, weight=job.weight, demand=job.demand)
        self.enact(self.scheduler.open(self.now, job.id, spec))

    def _report(self, job: Job) -> None:
        left = 1 if self.claims and job.user == "a" else None
        self.enact(self.scheduler.report(self.now, job.id, 1, job.demand, left))

    def _look(self) -> None:
        if not self.stays:
            super()._look()


def duel(
    policy: str,
    victim: dict[str, Any],
    rules: Rules = ONE_LANE,
    *,
    count: int = 1,
    renews: bool = False,
    stays: bool = False,
    claims: bool = False,
    groups: tuple[str, str] = ("", ""),
    **attack: Any,
) -> Outcome:
    """Return what user `a`, the attacker, has beside user `b`, who behaves, in 20 s."""
    mine = {"iteration": 0.02, "cell": 20, "cells": 10**6, "think": 0.0} | attack
    attackers = [Job(f"x{i}", "a", groups[0], demand=SMALL, **mine) for i in range(count)]
    victim_job = Job("victim", "b", groups[1], demand=SMALL, **victim)
    run = Duel([*attackers, victim_job], policy, 64 * GB, rules)
    run.renews, run.stays, run.claims = renews, stays, claims
    run.run(until=SECONDS)
    seconds = sum(job.seconds for job in attackers)
    return Outcome(seconds / (seconds + victim_job.seconds), victim_job.seconds / SECONDS)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_duel_of_two_users_is_even(policy: str, victim: str, attack: str) -> None:
    assert 0.48 <= duel(policy, VICTIMS[victim], **ATTACKS[attack]).share <= 0.52


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("iteration", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("policy", POLICIES)
def test_long_iterations_gain_nothing_but_themselves_between_two_cells(
    policy: str, victim: str, iteration: float, lanes: int
) -> None:
    outcome = duel(policy, VICTIMS[victim], Rules(running_lanes=lanes), iteration=iteration)
    assert outcome.victim >= owed(victim, iteration)
    if victim == "trains":
        assert outcome.is_even()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_for_each_iteration_gains_nothing(policy: str, victim: str) -> None:
    """At the end of each iteration only the other asks, so it has less: the device does
    not wait."""
    assert duel(policy, VICTIMS[victim], cell=1, weight=1000.0).share <= 0.52


@pytest.mark.system
@given(
    policy=st.sampled_from(POLICIES),
    victim=st.sampled_from(sorted(VICTIMS)),
    boost=st.sampled_from([0.0, 0.5]),
    groups=st.sampled_from([("", ""), ("g", "h")]),
    count=st.integers(1, 12),
    weight=st.sampled_from([0.001, 1.0, 1000.0]),
    renews=st.booleans(),
    claims=st.booleans(),
    iteration=st.sampled_from([0.005, 0.02, 0.05, 0.5, 2.0]),
    lanes=st.sampled_from(LANES),
    cell=st.sampled_from([2, 20, 10**9]),
    interactive=st.booleans(),
)
# Its notebooks are named as each other's successors while both users have had the same time.
@example(
    policy="srtf",
    victim="trains",
    boost=0.0,
    groups=("", ""),
    count=4,
    weight=0.001,
    renews=False,
    claims=False,
    iteration=2.0,
    lanes=1,
    cell=2,
    interactive=False,
)
@tries(75)
def test_nothing_that_a_user_does_gains_over_another(
    policy: str, victim: str, boost: float, lanes: int, iteration: float, **attack: Any
) -> None:
    rules = Rules(running_lanes=lanes, boost=boost)
    outcome = duel(policy, VICTIMS[victim], rules, iteration=iteration, **attack)
    assert outcome.is_even(owed(victim, iteration, boost))


def test_turns_are_counted_for_a_user_that_closes_its_only_notebook_after_each() -> None:
    """This holds also if each is shorter than a quantum, and goes first as that of a fresh
    cell."""
    rules = Rules(running_lanes=1, boost=0.5)
    assert duel("fair", VICTIMS["trains"], rules, iteration=0.05, cell=2, renews=True).share <= 0.52


def test_a_boost_ends_for_the_sessions_that_its_cell_has_passed() -> None:
    """The cell came first while no other session asked, between two cells of the other user."""
    rules, victim = Rules(running_lanes=1, boost=0.5), VICTIMS["runs short cells"]
    attack = {"cell": 10**9, "iteration": 0.05, "renews": True, "interactive": True}
    assert duel("fair", victim, rules, **attack).share <= 0.521


@pytest.mark.parametrize("policy", POLICIES)
def test_users_are_weighed_by_the_rulebook_and_notebooks_within_them(policy: str) -> None:
    mine = [
        Job(f"a{i}", "ann", demand=SMALL, weight=1000.0, cell=20, cells=10**6) for i in range(5)
    ]
    other = Job("b", "bob", demand=SMALL, cell=20, cells=10**6)
    run = Simulation([*mine, other], policy, rules=ONE_LANE)
    run.at(0, lambda: run.enact(run.scheduler.set_shares(0, {}, {"bob": 3.0})))
    run.run(until=60)
    assert run.share("b") == pytest.approx(0.75, abs=0.02)


def test_under_fifo_a_turn_that_was_withdrawn_loses_its_queue_position() -> None:
    it = Scheduler(16 * GB, "fifo", ONE_LANE)
    for id in ("first", "second"):
        it.open(0, id, SessionSpec("a", demand=SMALL))
        it.request(0, id, 1)
    (wish,) = it.preempt(1, "first").yields
    assert (wish.successor and wish.successor.session) == "second"
    assert [grant.session for grant in it.finish(1, "first", 1).grants] == ["second"]
    it.request(1, "first", 2)
    it.open(1, "third", SessionSpec("a", demand=SMALL))
    it.request(1, "third", 1)
    assert [grant.session for grant in it.finish(2, "second", 1).grants] == ["first"]
    assert it.is_valid() == ""
