"""Weights that change; short cells; throttled sessions."""

from __future__ import annotations

from random import Random

import pytest

from jupyter_gpushare._core import Demand, Reason, Rules, SessionSpec
from jupyter_gpushare.reasons import sentence

from ..looks import asked, granted, look, why
from ..plain import GB, Job, Simulation
from ..scheduler import Scheduler

BOOSTED = Rules(boost=0.5)
SMALL = Demand(GB // 100, GB)


def scheduler(*ids: str) -> Scheduler:
    it = Scheduler(16 * GB)
    for id in ids:
        it.open(0, id, SessionSpec("u", demand=SMALL))
    return it


# --- shares ---------------------------------------------------------------------------------------


def test_a_session_that_ran_alone_before_its_weight_changed_owes_nothing() -> None:
    """`a` has one turn for all the time in its own lane; its new weight counts only from then
    on."""
    a, b = Job("a", "a", "g"), Job("b", "b", "h")
    run = Simulation([a, b], "pack", rules=Rules(running_lanes=2)).run(until=50)
    assert a.seconds == b.seconds == pytest.approx(50, abs=0.1)
    run.enact(run.scheduler.set_shares(50, {"g": 0.125}, {}))
    run.enact(run.scheduler.set_shares(50, {}, {}))
    run.enact(run.scheduler.set_running_lanes(50, 1))
    run.run(until=70)
    assert a.seconds - 50 == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("policy", ["fair", "classroom"])
@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_idle_time_earns_no_credit(policy: str, weight: float) -> None:
    """A session that returns has its part at once, and not the device to itself."""
    stays = Job("a", iteration=0.1)
    returns = Job("b", iteration=0.1, cell=400, cells=2, think=1800, weight=weight)
    run = Simulation([stays, returns], policy)
    while not returns.cells_done:
        run.run(run.now + 1)
    run.run(run.now + returns.think)
    before = stays.seconds, returns.seconds
    run.run(run.now + 30)
    part = (returns.seconds - before[1]) / (stays.seconds - before[0] + returns.seconds - before[1])
    assert part == pytest.approx(weight / (1 + weight), abs=0.07)


def test_a_turn_without_a_break_fades_as_several_do() -> None:
    """Half of it counts after an hour, so a night alone counts like the first hour of the next."""
    night = Job("a", iteration=600.0, cell=6 * 16, cells=2)
    new = Job("b", start=16 * 3600.0, iteration=60.0)
    Simulation([night, new], "las").run(until=new.start + 4500)
    assert night.grants[-1] > new.start


@pytest.mark.parametrize("weights", [{"g": 0.0}, {"g": -1.0}, {"g": float("inf")}])
def test_a_wrong_weight_is_refused_and_changes_nothing(weights: dict[str, float]) -> None:
    it = scheduler("a")
    for groups, users in ((weights, {}), ({}, weights)):
        with pytest.raises(ValueError, match="a weight must be a finite number above 0"):
            it.set_shares(0, groups, users)
    assert it.is_valid() == ""


# --- short cells ----------------------------------------------------------------------------------


def classroom() -> tuple[list, list]:
    """Eight trainings, and thirty sessions that run short cells, all of different users."""
    trainers = [Job(f"t{i}", f"t{i}", iteration=0.1, demand=SMALL) for i in range(8)]
    people = [
        Job(
            f"p{i}",
            f"p{i}",
            start=Random(i).uniform(0, 20),
            iteration=0.03,
            cell=11,
            cells=10**6,
            think=20,
            demand=SMALL,
            interactive=True,
            random=Random(i),
        )
        for i in range(30)
    ]
    return trainers, people


@pytest.mark.parametrize("policy", ["fair", "classroom"])
def test_short_cells_make_progress_within_a_second_beside_busy_trainers(policy: str) -> None:
    trainers, people = classroom()
    Simulation([*trainers, *people], policy, rules=BOOSTED).run(until=300)
    waits = [wait for job in people for wait in job.first_progress]
    assert len(waits) > 300
    assert sorted(waits)[int(0.95 * len(waits))] < 1.0
    fair = 300 / 38
    assert all(job.seconds > fair for job in trainers)  # and the time that others leave
    assert max(job.seconds for job in trainers) < 1.02 * min(job.seconds for job in trainers)


def test_all_sessions_that_begin_a_cell_at_once_make_progress_after_one_iteration_of_each() -> None:
    trainers, people = classroom()
    for job in people:
        job.start, job.cell, job.random = 50.0, 1000, None
    Simulation([*trainers, *people], "fair", rules=BOOSTED).run(until=55)
    assert all(len(job.first_progress) == 1 for job in people)
    assert max(wait for job in people for wait in job.first_progress) < 0.1 + 30 * 0.03 + 0.05


# --- throttled by a rule --------------------------------------------------------------------------

WHY = [
    Reason("throttled_too_many_waiting", who="ann", count=2, rule="waiting"),
    Reason("ask_operator"),
]
TOLD = sentence(WHY, str)


def test_a_throttled_session_is_granted_nothing_and_told_why() -> None:
    it = scheduler("a", "b")
    it.throttle(0, {"a": WHY})
    assert not it.request(1, "a", 1)
    state = look(it, "a", 2)
    assert (state.state, state.position, why(state)) == ("throttled", None, TOLD)
    assert granted(it.request(2, "b", 1)) == ["b"]
    assert not it.finish(3, "b", 1)
    assert granted(it.throttle(4, {})) == ["a"]
    assert look(it, "a", 4).waited_seconds == pytest.approx(3)


def test_a_running_session_is_asked_to_yield_when_it_is_throttled() -> None:
    it = scheduler("a")
    it.request(0, "a", 1)
    assert asked(it.throttle(1, {"a": WHY})) == ["a"]
    assert (look(it, "a", 1).state, why(look(it, "a", 1))) == ("running", TOLD)
    assert not it.throttle(2, {"a": WHY})
    it.finish(3, "a", 1)
    assert (look(it, "a", 3).state, why(look(it, "a", 3))) == ("idle", TOLD)
    assert not it.request(4, "a", 2)
    assert look(it, "a", 4).state == "throttled"


def test_a_session_that_is_throttled_paused_and_on_disk_is_told_why() -> None:
    it = Scheduler(10 * GB)
    it.open(0, "a", SessionSpec("u", demand=Demand(GB, GB), busy=False, paged_out_bytes=GB))
    it.throttle(0, {"a": WHY})
    it.change(0, "a", paused=True)
    it.set_busy(0, "a", True)
    assert (look(it, "a", 0).state, why(look(it, "a", 0))) == ("paged_out", TOLD)


def test_a_closed_session_is_not_throttled_when_it_opens_again() -> None:
    it = scheduler("a")
    it.throttle(0, {"a": WHY})
    it.close(1, "a")
    assert granted(it.open(2, "a", SessionSpec("u", demand=SMALL, waiting=True, turn=1))) == ["a"]


def test_throttling_an_unknown_session_or_without_a_reason_is_refused() -> None:
    it = scheduler("a")
    with pytest.raises(KeyError, match="no session 'x' is open"):
        it.throttle(0, {"a": WHY, "x": WHY})
    with pytest.raises(ValueError, match="must be told why"):
        it.throttle(0, {"a": []})
    assert why(look(it, "a", 0)) == "its cell runs and needs no turn now"


def test_a_reason_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no reason 'because'"):
        Reason("because")


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"quantum": 0}, "the quantum must be above 0"),
        ({"half_life": 0}, "the half-life must be above 0"),
        ({"lease": 0}, "the lease must be above 0"),
        ({"aging": -1}, "the aging threshold must not be below 0"),
        ({"boost": -1}, "the boost must be finite"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Scheduler(16 * GB, "fair", Rules(**rule))
