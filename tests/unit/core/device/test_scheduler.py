"""Turns, admission, running alone, pausing, coming back, and the reasons that people see."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Decision, Demand, Rules, SessionSpec

from ..looks import look, why
from ..scheduler import Scheduler

GIB = 1 << 30
UNMEASURED = Demand(0, 0, measured=False)


def spec(
    persistent: float = 1, ephemeral: float = 2, user: str = "u", **more: object
) -> SessionSpec:
    return SessionSpec(user, demand=Demand(int(persistent * GIB), int(ephemeral * GIB)), **more)


def scheduler(*ids: str, policy: str = "fair", **rules: float) -> Scheduler:
    """A device of 12 GiB on which these sessions are open."""
    it = Scheduler(12 * GIB, policy, Rules(**rules))
    for id in ids:
        it.open(0, id, spec())
    return it


def grants(decision: Decision) -> list[tuple[str, int]]:
    return [(grant.session, grant.turn) for grant in decision.grants]


def yields(decision: Decision) -> list[tuple[str, int]]:
    return [(asked.session, asked.turn) for asked in decision.yields]


# --- turns ----------------------------------------------------------------------------------------


def asked_to_yield(*ids: str) -> Scheduler:
    """The first of `ids` runs, and is asked to yield to the others."""
    it = scheduler(*ids)
    for id in ids:
        it.request(0, id, 1)
    it.assign(10)
    return it


def test_no_successor_is_named_past_a_session_that_comes_first() -> None:
    it = scheduler("a", "b")
    it.open(0, "first", SessionSpec("u", demand=UNMEASURED, priority=1))
    for id in ("a", "b", "first"):
        it.request(0, id, 1)
    decision = it.assign(10)
    assert yields(decision) == [("a", 1)]
    assert decision.yields[0].successor is None


def promised() -> Scheduler:
    """a and b run in a lane each; a, which comes after b, was asked to yield to c."""
    it = scheduler(*"abc", running_lanes=2)
    it.change(0, "b", weight=2)
    for id in "abc":
        it.request(0, id, 1)
    assert look(it, "c", 0).lane == look(it, "a", 0).lane
    [asked] = it.assign(10).yields
    assert asked.successor is not None
    assert (asked.session, asked.successor.session) == ("a", "c")
    return it


def test_a_named_successor_is_given_no_other_lane() -> None:
    """It may have begun in that of the holder before it, and that lane would go to another one."""
    it = promised()
    lane = look(it, "a", 10).lane
    assert grants(it.finish(10.1, "b", 1)) == []
    assert grants(it.request(10.1, "b", 2)) == [("b", 2)]
    decision = it.finish(10.2, "a", 1)
    assert [(grant.session, grant.lane) for grant in decision.grants] == [("c", lane)]


def test_a_named_successor_that_asks_anew_is_given_any_lane() -> None:
    it = promised()
    it.finish(10.1, "b", 1)
    it.finish(10.1, "c", 1)
    assert grants(it.request(10.1, "c", 2)) == [("c", 2)]


def test_a_named_successor_waits_no_longer_than_the_lease_for_a_holder_that_does_not_yield() -> (
    None
):
    it = promised()
    it.finish(10.1, "b", 1)
    assert it.next_event(10.1) == 10 + Rules().lease
    assert grants(it.assign(10 + Rules().lease)) == [("c", 1)]


def test_no_session_is_named_by_two() -> None:
    it = promised()
    assert it.preempt(11, "b").yields[0].successor is None


def test_a_holder_that_opens_again_names_anew() -> None:
    it = asked_to_yield("a", "b")
    again = it.open(10.1, "a", SessionSpec("u", demand=Demand(GIB, GIB), turn=1, holding=True))
    assert grants(again) == []
    assert look(it, "b", 10.1).state == "waiting"


def test_a_stale_finish_changes_nothing() -> None:
    it = scheduler("a", "b")
    it.request(1, "a", 2)
    it.request(1, "b", 1)
    assert not it.finish(2 - 1e-9, "a", 1).grants
    assert look(it, "a", 2).state == "running"


def test_a_repeated_request_is_harmless() -> None:
    it = scheduler("a", "b")
    assert grants(it.request(1, "a", 1)) == [("a", 1)]
    assert not it.request(1, "a", 1)
    it.request(1, "b", 5)
    assert not it.request(1.1, "b", 5)
    assert not it.request(1.1, "b", 4)
    assert grants(it.finish(1.2, "a", 1)) == [("b", 5)]


def test_a_request_with_a_new_number_ends_the_turn_before_it() -> None:
    it = scheduler("a", "b")
    it.request(1, "a", 1)
    it.request(1, "b", 1)
    assert grants(it.request(2, "a", 2)) == [("b", 1)]
    assert grants(it.finish(3, "b", 1)) == [("a", 2)]


def test_a_holder_that_does_not_yield_is_overdue_and_keeps_its_lane() -> None:
    it = scheduler("a", "b", lease=30)
    it.request(1, "a", 1)
    it.request(1, "b", 1)
    it.assign(1.25)
    assert it.next_event(1.25) == pytest.approx(31.25)
    assert not it.assign(31.25)
    assert look(it, "a", 73.25).state == "overdue"
    assert why(look(it, "a", 73.25)) == "overdue: was asked to yield and has not"
    assert it.next_event(31.25) is None
    assert why(look(it, "b", 73.25)) == "waits for a, which is overdue"
    assert grants(it.close(80, "a")) == [("b", 1)]


def test_time_does_not_go_back() -> None:
    it = scheduler("a", "b")
    it.request(10, "a", 1)
    it.finish(5, "a", 1)
    assert look(it, "a", 10).device_seconds == 0
    with pytest.raises(ValueError, match="finite"):
        it.assign(float("nan"))


# --- memory ---------------------------------------------------------------------------------------


def test_a_demand_larger_than_the_device_is_refused_with_both_numbers() -> None:
    it = scheduler("a")
    with pytest.raises(OverflowError, match=f"{8 * GIB}, {5 * GIB}, {12 * GIB}, False"):
        it.open(1, "b", spec(8, 5))
    assert "b" not in it
    assert it.snapshot(1).free == 9 * GIB
    with pytest.raises(OverflowError):
        it.report(1, "a", 1, Demand(12 * GIB, 1))
    assert look(it, "a", 1).demand == Demand(1 * GIB, 2 * GIB)
    assert look(it, "a", 1).iterations == 0


def test_a_demand_that_grows_too_large_costs_its_session_the_admission() -> None:
    it = scheduler("a", "b")
    it.request(1, "a", 1)
    assert yields(it.report(2, "a", 1, Demand(3 * GIB, 9 * GIB))) == [("a", 1)]
    it.request(2, "b", 1)
    assert grants(it.finish(3, "a", 1)) == [("b", 1)]
    it.request(3, "a", 2)
    assert look(it, "a", 3).lane is None
    it.finish(4, "b", 1)
    assert look(it, "a", 4).state == "waiting"
    assert grants(it.close(5, "b")) == [("a", 2)]


def test_a_demand_that_shrinks_frees_memory_at_once() -> None:
    it = scheduler("a")
    it.report(1, "a", 1, Demand(1 * GIB, 10 * GIB))
    it.open(1, "b", spec(2, 2, waiting=True, turn=1))
    assert look(it, "b", 1).lane is None
    assert grants(it.report(2, "a", 1, Demand(1 * GIB, 2 * GIB))) == [("b", 1)]


def less_parallel_with_c() -> Scheduler:
    """a and b run in a lane each, and leave room for c only in one lane for all."""
    it = scheduler(policy="pack", running_lanes=3, aging=60)
    it.open(0, "a", spec(1, 5, waiting=True, turn=1))
    it.open(0, "b", spec(1, 4, user="v", waiting=True, turn=1))
    it.open(0, "c", spec(2.5, 4, user="w", waiting=True, turn=1))
    return it


def test_a_session_that_would_reduce_parallelism_is_admitted_only_after_aging() -> None:
    it = less_parallel_with_c()
    assert not yields(it.assign(59))
    it.finish(59, "a", 1)
    state = look(it, "c", 59)
    assert (state.lane, why(state)) == (None, "waits for memory: with it, fewer could run at once")
    it.request(59, "a", 2)
    assert it.next_event(59) == 60
    assert sorted(yields(it.assign(60))) == [("a", 2), ("b", 1)]
    it.finish(60.1, "b", 1)
    assert look(it, "c", 60.1).lane is not None


def test_it_is_admitted_as_soon_as_it_does_not_reduce_parallelism() -> None:
    it = less_parallel_with_c()
    assert look(it, "c", 1).lane is None
    it.close(2, "b")
    assert look(it, "c", 2).lane is not None


def test_a_session_whose_memory_is_on_the_device_is_counted_at_once() -> None:
    it = Scheduler(12 * GIB, "pack", Rules(running_lanes=3))
    it.open(0, "a", spec(1, 5))
    it.open(0, "b", spec(1, 4, user="v"))
    it.open(0, "c", spec(2.5, 4, user="w", iterations=7))
    assert look(it, "c", 0).lane is not None


# --- alone ----------------------------------------------------------------------------------------


def test_an_unmeasured_session_runs_alone() -> None:
    it = Scheduler(12 * GIB, "pack", Rules(running_lanes=3))
    for id in "abn":
        it.open(0, id, SessionSpec(id, demand=UNMEASURED) if id == "n" else spec(user=id))
    it.request(0, "a", 1)
    it.request(0, "b", 1)
    assert not it.request(0, "n", 1)
    assert why(look(it, "n", 0.1)) == ("runs alone until its memory is measured; waits for a")
    assert sorted(yields(it.assign(0.25))) == [("a", 1), ("b", 1)]
    assert not it.finish(0.3, "a", 1).grants
    assert not it.request(0.3, "a", 2)  # the device drains for the session that runs alone
    assert look(it, "a", 0.3).state == "waiting"
    assert grants(it.finish(0.4, "b", 1)) == [("n", 1)]
    assert not it.request(0.4, "b", 2)
    assert why(look(it, "n", 0.4)) == "runs alone until its memory is measured"
    decision = it.report(0.5, "n", 1, Demand(GIB, GIB))
    assert sorted(grants(decision)) == [("a", 2), ("b", 2)]  # it is measured: the others join


def test_a_session_that_runs_alone_has_the_whole_device_however_much_is_known_of_it() -> None:
    it = scheduler("a", "b", running_lanes=2)
    it.open(0, "n", spec(alone=True))
    it.request(0, "a", 1)
    it.request(0.1, "n", 1)
    assert why(look(it, "n", 0.1)) == "needs the whole device; waits for a"
    it.request(0.2, "b", 1)  # the device drains for the session that came before
    assert grants(it.finish(0.3, "a", 1)) == [("n", 1)]
    assert why(look(it, "n", 0.3)) == "runs, and has the whole device"
    assert why(look(it, "b", 0.3)) == "waits for n, which has the whole device"
    assert grants(it.report(0.4, "n", 1, Demand(GIB, GIB))) == []


def test_a_session_that_runs_alone_is_not_paged_out_and_knows_whether_it_is_admitted() -> None:
    it = Scheduler(12 * GIB)
    it.open(0, "n", spec(persistent=8, alone=True))
    it.set_busy(1, "n", False)
    decision = it.open(2, "large", spec(persistent=9))
    assert decision.page_outs == []
    assert [state.lane is None for state in it.snapshot(2).sessions] == [False, True]
    with pytest.raises(ValueError, match="cannot be paged out"):
        it.evict(3, "n")
    it.close(4, "n")
    assert look(it, "large", 4).lane is not None


def test_an_unmeasured_session_needs_no_room_in_a_lane() -> None:
    it = scheduler("a")
    it.report(0, "a", 1, Demand(1 * GIB, 11 * GIB))
    assert grants(it.open(0, "n", SessionSpec("u", demand=UNMEASURED, waiting=True, turn=1)))


# --- pause, close, come back ----------------------------------------------------------------------


def test_a_repeated_open_is_harmless() -> None:
    it = scheduler("a", "b")
    it.request(1, "a", 1)
    assert not it.open(1.1, "a", spec(turn=1, holding=True))
    assert look(it, "a", 1.1).state == "running"
    assert len(it.snapshot(1.1).sessions) == 2
    it.open(1.2, "a", spec())
    assert look(it, "a", 1.2).state == "idle"
    assert look(it, "a", 1.2).device_seconds == pytest.approx(0.2)


def test_a_new_broker_adopts_the_present_turn() -> None:
    it = scheduler()
    assert not it.open(0, "a", spec(turn=41, holding=True, device_seconds=100, iterations=10))
    assert not it.open(0, "b", spec(turn=3, waiting=True))
    state = look(it, "a", 0.1)
    assert (state.state, state.turn, state.iterations) == ("running", 41, 10)
    assert state.device_seconds == pytest.approx(100.1)
    assert yields(it.assign(0.25)) == [("a", 41)]
    assert grants(it.finish(0.3, "a", 41)) == [("b", 3)]


def test_two_sessions_that_claim_the_only_lane_are_both_counted_and_one_is_asked_at_once() -> None:
    it = scheduler()
    it.open(0, "a", spec(turn=1, holding=True))
    assert yields(it.open(0, "b", spec(turn=1, holding=True))) in ([("a", 1)], [("b", 1)])
    assert it.snapshot(0).free == 12 * GIB - 2 * GIB - 4 * GIB
    assert len(it.snapshot(0).lanes) == 2
    it.finish(0.1, "b", 1)
    assert len(it.snapshot(0.1).lanes) == 1
    assert it.is_valid() == ""


def test_no_session_starts_while_one_runs_that_has_no_lane() -> None:
    it = Scheduler(12 * GIB, "pack", Rules(running_lanes=3))
    it.open(0, "a", spec(1, 8, turn=1, holding=True))
    assert yields(it.open(0, "b", spec(1, 8, user="v", turn=1, holding=True))) == [("b", 1)]
    assert not it.open(0, "c", spec(0.1, 0.1, waiting=True, turn=1)).grants
    assert why(look(it, "c", 0)) == "waits for memory: b runs and has no lane"
    it.finish(1, "b", 1)
    assert look(it, "b", 1).lane is not None
    assert look(it, "c", 1).state == "running"


# --- what is refused ------------------------------------------------------------------------------


def test_wrong_values_are_refused_with_a_sentence() -> None:
    it = scheduler("a")
    with pytest.raises(ValueError, match="no policy 'best'; choose one of"):
        it.set_policy(1, "best")
    with pytest.raises(ValueError, match="weight must be a finite number above 0"):
        it.change(1, "a", weight=0)
    with pytest.raises(ValueError, match="running lanes must be 0"):
        it.set_running_lanes(1, -1)
    with pytest.raises(ValueError, match="iterations must not be negative"):
        it.report(1, "a", -1, Demand())
    with pytest.raises(ValueError, match="holds its turn or waits for it, not both"):
        it.open(1, "b", spec(holding=True, waiting=True))
    with pytest.raises(ValueError, match="turn is out of range"):
        it.request(1, "a", -1)
    with pytest.raises(ValueError, match="persistent is out of range"):
        Demand(10**30)
    assert it.is_valid() == ""


def test_a_turn_counts_for_its_user_before_the_next_lane_is_granted() -> None:
    it = scheduler(policy="classroom", running_lanes=3)
    for id, user in (("a", "ada"), ("b", "bob"), ("x", "eve")):
        it.open(0, id, spec(1, 1, user=user))
        it.request(0, id, 1)
        it.finish(1, id, 1)
    it.open(2, "all", SessionSpec("eve", demand=UNMEASURED))
    it.request(2, "all", 1)
    it.open(3, "alone", SessionSpec("ada", demand=UNMEASURED))
    for id, turn in (("a", 2), ("b", 2), ("alone", 1)):
        it.request(3, id, turn)
    assert grants(it.finish(4, "all", 1)) == [("a", 2), ("b", 2)]  # and then ada's other one
    assert look(it, "alone", 4).state == "waiting"


# --- after a crash of the broker ---------------------------------------------------------------


def test_while_it_recovers_holders_come_back_and_no_other_session_runs() -> None:
    it = scheduler("waiter")
    it.set_recovering(1, True)
    assert not it.request(1, "waiter", 1)
    assert not it.open(2, "holder", spec(1, 1, turn=7, holding=True))
    assert look(it, "holder", 2).state == "running"
    waiter = look(it, "waiter", 3)
    assert (waiter.state, waiter.waiting, waiter.expected_wait) == ("waiting", 2, None)
    assert why(waiter) == (
        "waits until the notebooks that had turns before the broker was restarted have come back"
    )
    assert it.next_event(3) is None
    assert not it.finish(4, "holder", 7)
    assert grants(it.set_recovering(5, False)) == [("waiter", 1)]
    assert look(it, "waiter", 5).waited_seconds == 4


# --- unmanaged memory -----------------------------------------------------------------------------


def test_idle_sessions_page_out_where_unmanaged_memory_exceeds_what_was_free() -> None:
    it = scheduler()
    for now, id in enumerate("abc"):
        it.open(now, id, spec(3, 1, busy=False))
    it.open(3, "busy", spec(1, 1))
    assert list(it.set_unmanaged(4, 4 * GIB).page_outs) == ["a"]
    assert why(look(it, "a", 4)) == "is asked to page out for unmanaged memory"
    assert not it.set_unmanaged(5, 4 * GIB)
    it.paged_out(6, "a", 3 * GIB)
    assert why(look(it, "a", 6)) == "paged out for unmanaged memory: 3.0 GiB are on disk"
    assert not it.assign(7)
    assert list(it.set_unmanaged(8, 12 * GIB).page_outs) == ["b", "c"]


# --- preemption requests of a user ----------------------------------------------------------------


def test_a_holder_is_said_to_let_others_run_only_while_others_wait() -> None:
    it = asked_to_yield("a", "b")
    assert why(look(it, "a", 1)) == "lets others run after its iteration"
    assert [look(it, id, 19).in_iteration for id in "ab"] == [19, None]
    it.finish(1, "b", 1)  # its wait is cancelled
    assert why(look(it, "a", 1)) == "was asked to yield, and ends its turn with its iteration"


def test_a_holder_that_a_user_preempts_yields_at_once_and_may_ask_again() -> None:
    it = Scheduler(100, "fifo")
    it.open(0, "a", SessionSpec("u", turn=1, waiting=True, demand=Demand(1, 1)))
    assert [wish.session for wish in it.preempt(1, "a").yields] == ["a"]
    assert not it.preempt(2, "a")  # it is asked once a turn
    it.finish(3, "a", 1)
    assert [grant.turn for grant in it.request(4, "a", 2).grants] == [2]
    assert it.is_valid() == ""


def test_a_session_without_a_turn_cannot_be_preempted() -> None:
    it = Scheduler(100)
    it.open(0, "a", SessionSpec("u"))
    with pytest.raises(ValueError, match=r"a has no turn to end"):
        it.preempt(1, "a")
