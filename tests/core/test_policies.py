"""The contract of a policy, once for all of them, and then the promises of each one."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Demand, Rules, policies
from jupyter_gpushare.reasons import sentence

from .plain import Job, Simulation

POLICIES = [name for name, _ in policies()]
WITH_QUANTUM = ["fair", "pack", "las"]  # a turn ends for another after the quantum
GB = 10**9
ONE_LANE = Rules(running_lanes=1)


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def test_the_table_names_the_policies_with_a_sentence() -> None:
    assert POLICIES == ["fair", "fifo", "srtf", "pack", "las", "classroom"]
    assert all(len(sentence) > 20 for _, sentence in policies())


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
def test_a_session_with_nothing_to_run_never_blocks_the_lane(policy: str) -> None:
    thinker = Job("thinker", user="a", cell=1, cells=1000, think=1.0, priority=5)
    worker = Job("worker", user="b")
    run = Simulation([thinker, worker], policy).run(until=60)
    assert run.jobs["thinker"].cells_done >= (1 if policy == "fifo" else 30)
    assert run.jobs["worker"].seconds + run.jobs["thinker"].seconds > 59.5


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_goes_first(policy: str) -> None:
    jobs = [Job(f"j{i}", user=f"u{i}", cell=20, cells=1, priority=i) for i in range(4)]
    first = Job("first", user="x", cell=2, cells=1, priority=9)
    run = Simulation([first, *jobs], policy, rules=ONE_LANE).run(until=100)
    done = sorted(run.jobs.values(), key=lambda job: job.done_at)
    assert [job.id for job in done] == ["first", "j3", "j2", "j1", "j0"]


@pytest.mark.parametrize("policy", POLICIES)
def test_weight_counts(policy: str) -> None:
    """Of two sessions that are equal but for their weight, the heavier one is served sooner or
    more."""
    light = Job("light", cell=100, cells=1, declares=True)
    heavy = Job("heavy", cell=100, cells=1, weight=3.0, declares=True)
    other = Job("other", cell=20, cells=1, declares=True)
    jobs = {"fifo": [other, light, heavy]}.get(policy, [light, heavy])
    run = Simulation(jobs, policy, rules=ONE_LANE).run(until=60)
    assert run.jobs["heavy"].done_at < run.jobs["light"].done_at


@pytest.mark.parametrize("policy", ["fair", "pack", "las"])
def test_weight_is_the_ratio_of_shares_within_a_user(policy: str) -> None:
    run = Simulation([Job("one"), Job("three", weight=3.0)], policy, rules=ONE_LANE).run(until=100)
    assert run.share("three") == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("policy", POLICIES)
def test_weight_priority_and_policy_change_live(policy: str) -> None:
    a, b, c = (Job(id, cell=4, cells=10_000) for id in "abc")
    run = Simulation([a, b, c], policy, rules=ONE_LANE).run(until=20)
    before = a.seconds
    run.change("a", priority=1)
    run.run(until=40)
    assert a.seconds - before > 9  # at least every second cell is one of a
    run.change("a", priority=0)
    run.enact(run.scheduler.set_policy(run.now, "fair"))
    run.change("b", weight=1.5)
    before = b.seconds
    run.run(until=140)
    assert b.seconds - before > 0.9 * 100 * 1.5 / 3.5


@pytest.mark.parametrize("policy", POLICIES)
def test_backfill_is_bounded(policy: str) -> None:
    """A large session waits for memory while small ones keep coming and going."""
    rules = Rules(aging=20)
    small = [
        Job(f"small{i}", user=f"u{i}", start=i * 1.0, cell=40, demand=Demand(2 * GB, GB))
        for i in range(200)
    ]
    large = Job("large", user="x", start=6.5, cell=10, demand=Demand(9 * GB, 3 * GB))
    run = Simulation([*small, large], policy, capacity=16 * GB, rules=rules)

    def close_what_is_done() -> None:
        for job in run.jobs.values():
            if job.done_at is not None and job.id in run.scheduler:
                run.close(job.id)

    for second in range(200):
        run.at(second + 0.5, close_what_is_done)
    run.run(until=150)
    assert large.grants
    admitted_before = [job for job in small if job.grants and job.grants[0] < large.grants[0]]
    overtook = [job for job in admitted_before if job.start > large.start + rules.aging + 20]
    assert not overtook


@pytest.mark.parametrize("policy", POLICIES)
def test_late_comers_get_their_turn(policy: str) -> None:
    early = [Job(f"early{i}", user=f"e{i}", cell=50, cells=10) for i in range(3)]
    late = Job("late", user="l", start=15, cell=4, cells=1)
    run = Simulation([*early, late], policy, rules=ONE_LANE).run(until=120)
    assert run.jobs["late"].done_at is not None
    # fifo: after the cells of all sessions that came first
    bound = 10.5 if policy == "fifo" else 2.0
    assert run.jobs["late"].done_at - 15 < bound


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lone_session_is_never_asked_to_yield(policy: str) -> None:
    run = Simulation([Job("alone")], policy).run(until=30)
    assert len(run.jobs["alone"].grants) == 1
    assert run.scheduler.next_event(run.now) is None


# --- fair -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
def test_fair_is_fair_over_users_first(lanes: int) -> None:
    """A user with five notebooks gets no more than one with a single one."""
    owners = ["a"] * 5 + ["b", "c", "c"]
    jobs = [
        Job(f"n{i}", user=user, iteration=0.01 * (i + 2), start=0.3 * i)
        for i, user in enumerate(owners)
    ]
    run = Simulation(jobs, "fair", rules=Rules(running_lanes=lanes)).run(until=300)
    by_user = [sum(job.seconds for job in run.jobs.values() if job.user == user) for user in "abc"]
    assert jain(by_user) >= 0.98
    if lanes == 1:
        assert jain([job.seconds for job in run.jobs.values() if job.user == "a"]) >= 0.98


def test_under_fair_a_newcomer_does_not_monopolise() -> None:
    old = Job("old", user="a")
    new = Job("new", user="b", start=100)
    run = Simulation([old, new], "fair").run(until=101)
    assert new.seconds == pytest.approx(0.5, abs=0.3)
    run.run(until=120)
    assert new.seconds == pytest.approx(10, abs=0.5)


def test_under_fair_sleeping_sessions_do_not_lower_the_start() -> None:
    sleeper = Job("sleeper", user="s", cell=1, cells=1)
    worker = Job("worker", user="w")
    new = Job("new", user="n", start=100)
    Simulation([sleeper, worker, new], "fair").run(until=102)
    assert new.seconds == pytest.approx(1.0, abs=0.4)


def test_under_fair_idle_time_earns_no_credit() -> None:
    sleeper = Job("sleeper", user="a", cell=20, cells=2, think=100)
    worker = Job("worker", user="b")
    run = Simulation([sleeper, worker], "fair").run(until=102)
    back = sleeper.ended[0] + 100
    run.run(until=back + 1)
    assert run.jobs["worker"].seconds > back - 2
    assert sleeper.cells_done == 1  # one second of work takes about two when shared


def test_under_fair_a_short_break_does_not_cost_owed_time() -> None:
    """Against iterations of 5 s a cell of 2 s runs through each time, although cells end."""
    short = Job("short", user="a", iteration=0.02, cell=100, cells=10**9, think=0.001)
    long = Job("long", user="b", iteration=5.0)
    run = Simulation([short, long], "fair").run(until=600)
    assert run.share("short") == pytest.approx(2 / 7, abs=0.02)


def test_under_fair_a_short_cell_comes_soon() -> None:
    workers = [Job(f"w{i}", user=f"u{i}") for i in range(5)]
    visitor = Job("visitor", user="v", start=50, cell=2, cells=20, think=3)
    Simulation([*workers, visitor], "fair").run(until=150)
    waits = [granted - 50 for granted in visitor.grants[:1]]
    assert visitor.cells_done == 20
    assert max(waits) < 0.5


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


def test_a_turn_lasts_a_quantum_when_others_wait() -> None:
    run = Simulation([Job("a", iteration=0.01), Job("b", iteration=0.01)], "fair").run(until=50)
    assert len(run.jobs["a"].grants) == pytest.approx(50 / 0.25 / 2, rel=0.1)


# --- fifo, srtf, las, pack ------------------------------------------------------------------------


def test_fifo_serves_in_order_of_request_and_ends_no_turn() -> None:
    jobs = [Job(f"j{i}", start=i * 0.1, cell=20 * (4 - i), cells=1) for i in range(4)]
    run = Simulation(jobs, "fifo").run(until=100)
    done = sorted(run.jobs.values(), key=lambda job: job.done_at)
    assert [job.id for job in done] == ["j0", "j1", "j2", "j3"]
    assert all(len(job.grants) == 1 for job in jobs)


def test_srtf_ends_the_shortest_first_and_preempts_at_once() -> None:
    long = Job("long", cell=1000, cells=1, declares=True)
    middle = Job("middle", cell=300, cells=1, declares=True)
    short = Job("short", start=4, cell=20, cells=1, declares=True)
    Simulation([long, middle, short], "srtf").run(until=200)
    assert short.done_at < middle.done_at < long.done_at
    assert short.done_at == pytest.approx(4 + 20 * 0.05, abs=0.2)


def test_srtf_says_when_the_remaining_work_is_unknown() -> None:
    run = Simulation([Job("a"), Job("b")], "srtf").run(until=1)
    waiting = [s for s in run.scheduler.snapshot(1).sessions if s.state == "waiting"]
    assert sentence(waiting[0].why, str).endswith(
        "remaining work unknown: ordered by service so far"
    )


def test_under_srtf_a_session_that_overran_is_not_first_for_ever() -> None:
    liar = Job("liar", cell=400, cells=1)
    honest = Job("honest", start=2, cell=60, cells=1, declares=True)
    run = Simulation([liar, honest], "srtf")
    run.at(0.01, lambda: run.enact(run.scheduler.report(run.now, "liar", 1, liar.demand, 3)))
    run.run(until=60)
    assert honest.done_at < 7
    assert liar.done_at == pytest.approx(23, abs=1)


def test_las_lets_short_work_pass() -> None:
    long = Job("long", cell=1000, cells=1)
    short = [Job(f"s{i}", start=10 + 5 * i, cell=20, cells=1) for i in range(3)]
    Simulation([long, *short], "las").run(until=100)
    for job in short:
        assert job.done_at - job.start < 1.5
    assert long.done_at is not None


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
