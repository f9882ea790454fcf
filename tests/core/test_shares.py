"""Fair shares over groups, users and notebooks; short cells; throttled sessions; class mode."""

from __future__ import annotations

import math
from random import Random

import pytest

from jupyter_gpushare._core import Demand, Reason, Rules, SessionSpec
from jupyter_gpushare._core_testing import Scheduler
from jupyter_gpushare.reasons import sentence

from .looks import asked, granted, look, why
from .plain import Job, Simulation

GB = 10**9
ONE_LANE = Rules(running_lanes=1)
BOOSTED = Rules(boost=0.5)
SMALL = Demand(GB // 100, GB)


def scheduler(*ids: str, user: str = "u", **rules: float) -> Scheduler:
    it = Scheduler(16 * GB, "fair", Rules(**rules))
    for id in ids:
        it.open(0, id, SessionSpec(user, demand=SMALL))
    return it


# --- shares ---------------------------------------------------------------------------------------

# Ten sessions of five users in three groups: the session, its weight and since when.
GROUPS = {"a": 1.0, "b": 2.0, "c": 3.0}
USERS = {"ann": 1.0, "bob": 3.0, "cy": 1.0, "dan": 0.5, "eve": 2.0}
SESSIONS = [
    ("a", "ann", 1.0, 0),
    ("a", "ann", 3.0, 0),
    ("a", "bob", 1.0, 7),
    ("b", "cy", 1.0, 0),
    ("b", "cy", 1.0, 60),
    ("b", "cy", 2.0, 130),
    ("c", "dan", 1.0, 0),
    ("c", "dan", 4.0, 0),
    ("c", "eve", 1.0, 90),
    ("c", "eve", 2.0, 0),
]


def shares_by_rule() -> list[float]:
    """Return for each of SESSIONS its part of its user's part, which is a part of its group's."""

    def part(weight: float, weights: list[float]) -> float:
        return weight / sum(weights)

    members = {(group, user) for group, user, _, _ in SESSIONS}
    return [
        part(GROUPS[group], list(GROUPS.values()))
        * part(USERS[user], [USERS[other] for of, other in members if of == group])
        * part(weight, [w for g, u, w, _ in SESSIONS if (g, u) == (group, user)])
        for group, user, weight, _ in SESSIONS
    ]


def test_time_goes_by_weight_to_groups_then_users_then_notebooks() -> None:
    jobs = [
        Job(f"n{i}", user, group, start, 0.01 * (i % 4 + 2), weight=weight, demand=SMALL)
        for i, (group, user, weight, start) in enumerate(SESSIONS)
    ]
    run = Simulation(jobs, "fair", rules=ONE_LANE)
    run.at(0, lambda: run.enact(run.scheduler.set_shares(0, GROUPS, USERS)))
    run.run(until=200)  # the last has come by then
    before = [job.seconds for job in jobs]
    run.run(until=1200)
    for job, earlier, share in zip(jobs, before, shares_by_rule(), strict=True):
        assert (job.seconds - earlier) / 1000 == pytest.approx(share, rel=0.03)


def test_one_name_in_two_groups_is_two_users() -> None:
    jobs = [Job("g1", "u", "g"), Job("h1", "u", "h"), Job("h2", "v", "h")]
    run = Simulation(jobs, "fair").run(until=100)
    assert run.share("g1") == pytest.approx(0.5, abs=0.02)


def test_weights_count_from_when_they_are_set() -> None:
    a, b = Job("a", "ann", "g"), Job("b", "bob", "h")
    run = Simulation([a, b], "fair").run(until=100)
    assert run.share("a") == pytest.approx(0.5, abs=0.02)
    run.enact(run.scheduler.set_shares(100, {"g": 3.0}, {}))
    before = a.seconds
    run.run(until=200)
    assert a.seconds - before == pytest.approx(75, abs=2)
    # there is no other user in her group
    run.enact(run.scheduler.set_shares(200, {}, {"ann": 9.0}))
    before = a.seconds
    run.run(until=300)
    assert a.seconds - before == pytest.approx(50, abs=2)


def test_a_session_that_ran_alone_before_its_weight_changed_owes_nothing() -> None:
    """In its own lane `a` has one turn for all the time; its weight counts for the time to
    come."""
    a, b = Job("a", "a", "g"), Job("b", "b", "h")
    run = Simulation([a, b], "pack", rules=Rules(running_lanes=2)).run(until=50)
    assert a.seconds == b.seconds == pytest.approx(50, abs=0.1)
    run.enact(run.scheduler.set_shares(50, {"g": 0.125}, {}))
    run.enact(run.scheduler.set_shares(50, {}, {}))
    run.enact(run.scheduler.set_running_lanes(50, 1))
    run.run(until=70)
    assert a.seconds - 50 == pytest.approx(10, abs=0.5)


def test_many_sessions_that_come_at_once_do_not_starve_the_others() -> None:
    trainers = [Job(f"t{i}", f"t{i}", demand=SMALL) for i in range(8)]
    crowd = [Job(f"c{i}", f"c{i}", start=100, demand=SMALL) for i in range(30)]
    run = Simulation([*trainers, *crowd], "fair").run(until=100)
    before = {job.id: job.seconds for job in run.jobs.values()}
    run.run(until=176)
    for job in run.jobs.values():
        assert job.seconds - before[job.id] == pytest.approx(2, abs=0.5)


@pytest.mark.parametrize("weights", [{"g": 0.0}, {"g": -1.0}, {"g": float("inf")}])
def test_a_wrong_weight_is_refused_and_changes_nothing(weights: dict[str, float]) -> None:
    it = scheduler("a")
    for groups, users in ((weights, {}), ({}, weights)):
        with pytest.raises(ValueError, match="a weight must be a finite number above 0"):
            it.set_shares(0, groups, users)
    assert it.is_valid() == ""


def test_a_turn_is_handed_off_within_a_domain() -> None:
    it = Scheduler(16 * GB)
    for id, user, domain in (("a", "u", "lab"), ("b", "v", "lab")):
        it.open(0, id, SessionSpec(user, demand=SMALL, domain=domain))
        it.request(0, id, 1)
    (asked,) = it.assign(1).yields
    assert asked.successor is not None
    assert asked.successor.session == "b"


def test_no_turn_is_handed_off_out_of_a_domain_not_even_to_the_same_user() -> None:
    it = Scheduler(16 * GB)
    for id, domain in (("a", "lab"), ("b", "")):
        it.open(0, id, SessionSpec("u", demand=SMALL, domain=domain))
        it.request(0, id, 1)
    (asked,) = it.assign(1).yields
    assert asked.successor is None


# --- short cells ----------------------------------------------------------------------------------


def classroom(think: float) -> tuple[list, list]:
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
            think=think,
            demand=SMALL,
            interactive=True,
            random=Random(i),
        )
        for i in range(30)
    ]
    return trainers, people


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.parametrize("policy", ["fair", "classroom"])
def test_short_cells_make_progress_within_a_second_beside_busy_trainers(policy: str) -> None:
    trainers, people = classroom(think=20)
    Simulation([*trainers, *people], policy, rules=BOOSTED).run(until=300)
    waits = [wait for job in people for wait in job.first_progress]
    assert len(waits) > 300
    assert p95(waits) < 1.0
    fair = 300 / 38
    assert all(job.seconds > fair for job in trainers)  # and the time that others leave
    assert max(job.seconds for job in trainers) < 1.02 * min(job.seconds for job in trainers)


def test_all_sessions_that_begin_a_cell_at_once_make_progress_after_one_iteration_of_each() -> None:
    trainers, people = classroom(think=20)
    for job in people:
        job.start, job.cell, job.random = 50.0, 1000, None
    Simulation([*trainers, *people], "fair", rules=BOOSTED).run(until=55)
    assert all(len(job.first_progress) == 1 for job in people)
    assert max(wait for job in people for wait in job.first_progress) < 0.1 + 30 * 0.03 + 0.05


def test_a_session_that_begins_cells_all_the_time_gets_no_more_than_a_fair_share() -> None:
    """The boost is counted: a loop of short cells gets its turns sooner, and no more of them."""
    trainers = [Job(f"t{i}", f"t{i}", iteration=0.1) for i in range(3)]
    greedy = Job("greedy", "g", cell=2, cells=10**6, think=0.001, interactive=True)
    run = Simulation([*trainers, greedy], "fair", rules=BOOSTED).run(until=400)
    assert run.share("greedy") == pytest.approx(0.25, rel=0.03)
    assert all(run.share(job.id) == pytest.approx(0.25, rel=0.03) for job in trainers)


def test_a_user_with_many_notebooks_is_boosted_no_more_than_one_with_one() -> None:
    other = Job("other", "o")
    many = [
        Job(f"m{i}", "m", cell=4, cells=10**6, think=0.5, interactive=True, demand=SMALL)
        for i in range(10)
    ]
    run = Simulation([other, *many], "fair", rules=BOOSTED).run(until=200)
    assert run.share("other") == pytest.approx(0.5, abs=0.02)


def test_a_fresh_cell_goes_before_a_boosted_one_and_that_before_the_others() -> None:
    it = Scheduler(16 * GB, "fair", Rules(boost=0.5))
    for id in ("long", "begun", "fresh"):
        it.open(0, id, SessionSpec(id, demand=SMALL, busy=id == "long"))
    it.request(0, "long", 1)
    it.set_busy(10, "begun", True)
    assert asked(it.request(10, "begun", 1)) == ["long"]
    assert granted(it.finish(10.05, "long", 1)) == ["begun"]
    assert not it.request(10.05, "long", 2)
    it.set_busy(10.1, "fresh", True)
    assert asked(it.request(10.1, "fresh", 1)) == ["begun"]
    assert granted(it.finish(10.15, "begun", 1)) == ["fresh"]
    assert not it.request(10.15, "begun", 2)
    assert granted(it.finish(10.2, "fresh", 1)) == ["begun"]
    assert it.is_valid() == ""


def test_a_cell_is_boosted_once_however_often_it_is_said_to_begin() -> None:
    it = Scheduler(16 * GB, "fair", Rules(boost=0.5))
    it.open(0, "cell", SessionSpec("u", demand=SMALL, busy=False))
    it.open(0, "long", SessionSpec("v", demand=SMALL, device_seconds=100))
    it.set_busy(0, "cell", True)
    it.request(0, "cell", 1)
    it.request(0, "long", 1)
    assert it.next_event(0) == pytest.approx(0.5, abs=1e-6)
    it.set_busy(0.4, "cell", True)
    assert it.next_event(0.4) == pytest.approx(0.5, abs=1e-6)
    assert asked(it.assign(0.5)) == ["cell"]
    it.finish(0.5, "cell", 1)
    it.set_busy(0.5, "cell", True)
    assert not it.request(0.5, "cell", 2)  # it waits as all others do


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
    assert not it.request(3, "a", 2)
    assert look(it, "a", 3).state == "throttled"


def test_a_throttled_session_that_wants_nothing_is_idle() -> None:
    it = scheduler("a")
    it.throttle(0, {"a": WHY})
    assert (look(it, "a", 0).state, why(look(it, "a", 0))) == ("idle", TOLD)


def test_these_and_only_these_are_throttled() -> None:
    it = scheduler("a", "b")
    it.throttle(0, {"a": WHY})
    it.request(0, "a", 1)
    it.request(0, "b", 1)
    assert (granted(d := it.throttle(1, {"b": WHY})), asked(d)) == ([], ["b"])
    assert granted(it.finish(2, "b", 1)) == ["a"]


def test_a_throttled_session_earns_no_credit() -> None:
    a, b = Job("a", "a"), Job("b", "b")
    run = Simulation([a, b], "fair")
    run.at(10, lambda: run.enact(run.scheduler.throttle(10, {"a": WHY})))
    run.at(60, lambda: run.enact(run.scheduler.throttle(60, {})))
    run.run(until=60)
    assert a.seconds == pytest.approx(5, abs=0.5)
    assert b.seconds == pytest.approx(55, abs=0.5)
    run.run(until=100)
    assert a.seconds == pytest.approx(25, abs=0.7)


def test_a_throttled_session_waits_anew_under_fifo() -> None:
    it = Scheduler(16 * GB, "fifo")
    for id in ("runs", "throttled", "other"):
        it.open(0, id, SessionSpec(id, demand=SMALL))
        it.request(0, id, 1)
    it.throttle(1, {"throttled": WHY})
    it.throttle(50, {})
    assert granted(it.finish(51, "runs", 1)) == ["other"]


def test_a_throttled_session_keeps_no_other_from_memory() -> None:
    it = Scheduler(10 * GB, "fair", Rules(aging=5))
    it.open(0, "there", SessionSpec("u", demand=Demand(6 * GB, GB)))
    it.open(0, "large", SessionSpec("v", demand=Demand(5 * GB, GB), waiting=True, turn=1))
    it.throttle(1, {"large": WHY})
    it.open(20, "small", SessionSpec("w", demand=Demand(GB, GB)))
    assert look(it, "small", 20).lane is not None
    it.close(21, "there")
    assert look(it, "large", 21).lane is None
    it.throttle(22, {})
    assert look(it, "large", 22).state == "running"


def test_a_throttled_session_on_disk_does_not_come_back() -> None:
    it = Scheduler(10 * GB)
    spec = SessionSpec("u", demand=Demand(GB, GB), busy=False, paged_out_bytes=GB)
    it.open(0, "a", spec)
    it.throttle(0, {"a": WHY})
    assert look(it, "a", 0).state == "paged_out"
    assert not it.set_busy(1, "a", True)
    assert look(it, "a", 1).state == "throttled"
    assert list(it.throttle(2, {}).page_ins) == ["a"]


def test_a_session_that_is_throttled_paused_and_on_disk_is_told_why() -> None:
    it = Scheduler(10 * GB)
    it.open(0, "a", SessionSpec("u", demand=Demand(GB, GB), busy=False, paged_out_bytes=GB))
    it.throttle(0, {"a": WHY})
    it.change(0, "a", paused=True)
    it.set_busy(0, "a", True)
    assert (look(it, "a", 0).state, why(look(it, "a", 0))) == ("paged_out", TOLD)


def test_a_named_successor_that_is_throttled_is_asked_to_give_the_turn_back() -> None:
    """It may have been handed the turn already."""
    it = scheduler("a", "b")
    it.request(0, "a", 1)
    it.request(0, "b", 1)
    assert asked(it.assign(1)) == ["a"]
    it.throttle(1, {"b": WHY})
    decision = it.finish(1.1, "a", 1)
    assert (granted(decision), asked(decision)) == (["b"], ["b"])


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
    assert why(look(it, "a", 0)) == "nothing to run"


def test_a_reason_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no reason 'because'"):
        Reason("because")


# --- classroom, and rules that change -------------------------------------------------------------


def test_in_a_classroom_users_take_short_turns_one_after_the_other() -> None:
    owners = ["ann", "ann", "ann", "bob", "cy"]
    jobs = [Job(f"n{i}", user, iteration=0.01) for i, user in enumerate(owners)]
    run = Simulation(jobs, "classroom").run(until=30)
    turns = sorted((grant, job.user) for job in jobs for grant in job.grants)
    users = [user for _, user in turns if _ > 1]
    assert all(set(users[i : i + 3]) == {"ann", "bob", "cy"} for i in range(len(users) - 2))
    assert len(turns) == pytest.approx(30 / 0.05, rel=0.3)
    by_user = [sum(job.seconds for job in jobs if job.user == user) for user in set(owners)]
    assert max(by_user) < 1.05 * min(by_user)
    of_ann = [job.seconds for job in jobs[:3]]
    assert max(of_ann) < 1.05 * min(of_ann)
    assert run.scheduler.is_valid() == ""


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


def test_a_user_that_closes_all_notebooks_and_opens_others_owes_what_they_owed() -> None:
    it = Scheduler(16 * GB, "fair", Rules(running_lanes=1, half_life=math.inf))
    for user in "ab":
        it.open(0, user, SessionSpec(user, demand=SMALL))
        it.request(0, user, 1)
    assert granted(it.finish(60, "a", 1)) == ["b"]
    it.close(60, "a")
    it.open(60, "another", SessionSpec("a", demand=SMALL))
    it.request(60, "another", 1)
    assert it.is_valid() == ""
    assert it.next_event(60) == pytest.approx(120)
