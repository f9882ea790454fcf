"""Which sessions are asked to page out, which come back, in which order, and the reasons that
people see."""

from __future__ import annotations

import pytest

from jupyter_gpushare._core import Decision, Demand, Reason, Rules, SessionSpec

from ..looks import granted, look, why
from ..scheduler import DEVICE, Scheduler

GIB = 1 << 30


def spec(
    persistent: float = 3, ephemeral: float = 1, user: str = "u", **more: object
) -> SessionSpec:
    return SessionSpec(user, demand=Demand(int(persistent * GIB), int(ephemeral * GIB)), **more)


def scheduler(capacity: float = 10, **rules: float) -> Scheduler:
    return Scheduler(int(capacity * GIB), "fair", Rules(**rules))


def idle(it: Scheduler, now: float, id: str, *size: float, **more: object) -> Decision:
    """Opens a session in which no cell runs since `now`."""
    return it.open(now, id, spec(*size, busy=False, **more))


def needy(it: Scheduler, now: float, id: str, *size: float, **more: object) -> Decision:
    """Opens a session that asks for its first turn."""
    return it.open(now, id, spec(*size, turn=1, waiting=True, **more))


def three_idle(**rules: float) -> Scheduler:
    """Sessions a, b and c, which became idle in this order and leave no room for a fourth."""
    it = scheduler(**rules)
    for now, id in enumerate("abc"):
        idle(it, now, id)
    return it


def one_out() -> Scheduler:
    """Session a is out, b, c and d are in, and no cell runs in b and c."""
    it = three_idle()
    assert list(needy(it, 3, "d").page_outs) == ["a"]
    assert granted(it.paged_out(4, "a", 2 * GIB)) == ["d"]
    return it


def where(it: Scheduler, now: float) -> dict[str, str]:
    """Return for each session whether it is in a lane, is out, or is neither."""
    device_snapshot = it.snapshot(now)
    assert it.is_valid() == ""
    out = {s.id: "out" if s.state == "paged_out" else "nowhere" for s in device_snapshot.sessions}
    return {id: "in" if look(it, id, now).lane else other for id, other in out.items()}


# --- which session is asked to page out -----------------------------------------------------------


def test_a_session_that_does_not_answer_is_given_up_and_the_next_is_asked() -> None:
    """The time depends on its memory: 3 GiB take a slow disk 65 s."""
    it = three_idle(lease=1, aging=1000)
    assert list(needy(it, 3, "d").page_outs) == ["a"]
    given_up = it.next_event(3)
    assert given_up is not None
    assert given_up == pytest.approx(3 + 1 + 3 * GIB / 50e6)
    assert list(it.assign(given_up - 1).page_outs) == []
    assert list(it.assign(given_up).page_outs) == ["b"]
    assert why(look(it, "a", given_up)) != "is asked to page out for d"
    assert granted(it.paged_out(given_up + 1, "b", 2 * GIB)) == ["d"]


def test_a_session_that_only_waits_for_lanes_to_merge_pages_out_no_other() -> None:
    it = Scheduler(12 * GIB, "pack", Rules(running_lanes=3, aging=0))
    needy(it, 0, "a", 1, 4)
    needy(it, 0, "b", 1, 4, user="v")
    idle(it, 0, "i", 1, 0)
    assert not needy(it, 0, "c", 2, 4, user="w").page_outs
    assert sorted(y.session for y in it.assign(0.3).yields) == ["a", "b"]
    it.finish(0.4, "a", 1)
    assert where(it, 0.4)["c"] == "in"


# --- which session is evicted in the middle of a cell ---------------------------------------------


def two_wait(page_waiting: bool = True) -> Scheduler:
    """`long` waits for its turn beside `runs`, which leaves no room for a third."""
    return all_wait(("runs", 4, 5000), ("long", 4, 10000), page_waiting=page_waiting)


def all_wait(*sessions: tuple[str, int, int], page_waiting: bool = True) -> Scheduler:
    """Each has a number of GiB, and of iterations that are left."""
    it = Scheduler(10 * GIB, "srtf", Rules(aging=60, page_waiting=page_waiting))
    for id, gibibytes, left in sessions:
        it.open(0, id, spec(gibibytes, iterations=1, device_seconds=1.0))
        it.report(0, id, 0, Demand(gibibytes * GIB, GIB), left)
        it.request(1, id, 1)
    return it


def short(it: Scheduler, now: float, left: int = 1) -> Decision:
    return needy(it, now, "short", 4, iterations=1, device_seconds=1.0, remaining_iterations=left)


def test_a_waiting_session_is_evicted_for_an_aged_one_before_it() -> None:
    it = two_wait()
    assert not short(it, 2).page_outs
    assert it.next_event(3) == 62
    assert list(it.assign(62).page_outs) == ["long"]
    assert why(look(it, "long", 62)) == "is asked to page out for short"
    assert [asked.session for asked in it.paged_out(63, "long", GIB).yields] == ["runs"]
    assert where(it, 63) == {"runs": "in", "long": "out", "short": "in"}
    assert granted(it.finish(64, "runs", 1)) == ["short"]
    decision = it.close(65, "short")
    assert (list(decision.page_ins), granted(decision)) == (["long"], ["long"])


@pytest.mark.parametrize("page_waiting", [False, True])
def test_a_throttled_session_that_waits_is_evicted_as_an_idle_one_is(page_waiting: bool) -> None:
    it = two_wait(page_waiting=page_waiting)
    it.throttle(1, {"long": [Reason("above_persistent", who="ann")]})
    assert list(short(it, 2, left=50000).page_outs) == ["long"]
    it.paged_out(63, "long", GIB)
    assert where(it, 63) == {"runs": "in", "long": "nowhere", "short": "in"}
    assert look(it, "long", 63).state == "throttled"
    assert not it.throttle(64, {}).page_ins  # until there is room for it
    it.finish(65, "runs", 1)
    it.close(66, "runs")
    assert where(it, 66) == {"short": "in", "long": "in"}


def test_an_evicted_session_stays_out_until_the_others_have_been_evicted_too() -> None:
    it = all_wait(("runs", 4, 5000), ("long", 2, 10000), ("longer", 2, 20000))
    short(it, 2)
    assert sorted(it.assign(62).page_outs) == ["long", "longer"]
    assert not it.paged_out(63, "long", GIB).page_ins
    assert where(it, 63) == {"runs": "in", "long": "out", "longer": "in", "short": "nowhere"}
    it.paged_out(64, "longer", GIB)
    assert where(it, 64) == {"runs": "in", "long": "out", "longer": "out", "short": "in"}


def test_a_running_or_higher_ranked_session_stays() -> None:
    it = two_wait()
    short(it, 2, left=50000)
    assert not it.assign(100).page_outs
    it.finish(101, "runs", 1)  # the turn is `long`'s
    assert where(it, 101) == {"runs": "in", "long": "in", "short": "nowhere"}


def test_a_named_successor_stays() -> None:
    it = two_wait()
    decision = it.change(2, "long", priority=1)
    assert [asked.successor.session for asked in decision.yields if asked.successor] == ["long"]
    needy(it, 2, "first", 4, priority=2)
    assert not it.assign(62).page_outs
    assert granted(it.finish(63, "runs", 1)) == ["long"]


def test_a_session_that_is_asked_to_page_out_has_no_turn_before_it_has_answered() -> None:
    it = two_wait()
    short(it, 2)
    it.assign(62)
    assert not it.finish(63, "runs", 1).grants
    assert granted(it.page_out_failed(64, "long")) == ["long"]


def test_an_evicted_session_ages_as_all_others_do() -> None:
    it = two_wait()
    short(it, 2, left=90)
    it.assign(62)
    it.paged_out(63, "long", GIB)
    it.change(64, "long", priority=1)
    it.request(65, "runs", 2)
    assert not it.assign(122).page_outs
    assert list(it.assign(123).page_outs) == ["runs"]
    assert look(it, "long", 123).waited_seconds == pytest.approx(122)


def test_where_a_session_cannot_page_out_the_oldest_comes_first_as_before() -> None:
    it = two_wait()
    short(it, 2)
    it.assign(62)
    it.page_out_failed(63, "long")
    needy(it, 63, "small", 0, 2, priority=1)
    assert where(it, 63)["small"] == "nowhere"


# --- answers --------------------------------------------------------------------------------------


def test_people_are_told_for_which_session_another_is_out() -> None:
    it = one_out()
    assert why(look(it, "a", 4)) == "paged out for d: 2.0 GiB are on disk"
    it.close(5, "d")
    assert why(look(it, "a", 5)) == "paged out for d: 2.0 GiB are on disk"


FULL = "300 MiB do not fit into /pages, which has 40 MiB free: No space left on device"


def test_its_user_is_told_why_a_notebook_could_not_page_out() -> None:
    it = three_idle()
    needy(it, 3, "d")
    for id in ("a", "b", "c"):
        it.page_out_failed(4, id, FULL)
    reason = why(look(it, "d", 4))
    assert reason.startswith("waits for memory: needs ")
    assert reason.endswith(f"; a could not be paged out: {FULL}")
    it.set_busy(5, "a", True)  # it may be asked again
    assert f"; b could not be paged out: {FULL}" in why(look(it, "d", 5))


def test_other_users_are_told_that_it_could_not_and_no_directories() -> None:
    it = three_idle()
    needy(it, 3, "d", user="other")
    for id in ("a", "b", "c"):
        it.page_out_failed(4, id, FULL)
    assert why(look(it, "d", 4)).endswith("; a could not be paged out")


def test_a_waiting_session_is_told_that_a_notebook_has_not_answered() -> None:
    it = three_idle(lease=2)
    needy(it, 3, "d")
    for now in (1_000, 2_000, 3_000):
        it.assign(now)
    assert "could not be paged out: it has not answered" in why(look(it, "d", 3_000))


# --- coming back ----------------------------------------------------------------------------------


def test_no_session_is_backfilled_past_an_aged_one_that_wants_to_come_back() -> None:
    it = scheduler(aging=60)
    idle(it, 0, "a", 5)
    it.paged_out(0, "a", GIB)
    it.open(0, "b", spec(6))
    it.set_busy(1, "a", True)
    assert it.next_event(1) == pytest.approx(61)
    needy(it, 2, "small", 1)
    assert where(it, 2)["small"] == "in"
    it.close(3, "small")
    needy(it, 61, "small", 1)
    state = look(it, "a", 61)
    assert why(state) == "waits for room to come back: needs 5.0 GiB, 3.0 GiB are free, and is next"
    assert why(look(it, "small", 61)) == ("waits for memory: a has waited longer and comes first")
    decision = it.close(62, "b")
    assert (list(decision.page_ins), granted(decision)) == (["a"], ["small"])


def test_a_demand_that_changed_while_it_was_out_counts_when_it_comes_back() -> None:
    it = one_out()
    assert not it.report(5, "a", 1, Demand(6 * GIB, 1 * GIB))
    assert list(it.set_busy(6, "a", True).page_outs) == ["b", "c"]


# --- sessions that come and go --------------------------------------------------------------------


def test_a_session_that_registers_with_its_turn_keeps_it() -> None:
    it = scheduler()
    decision = it.open(0, "a", spec(turn=1, holding=True, paged_out_bytes=GIB))
    assert list(decision.page_ins) == ["a"]
    assert (look(it, "a", 0).state, look(it, "a", 0).paged_out_bytes) == ("running", 0)


def test_a_session_that_opens_again_has_not_been_asked() -> None:
    it = three_idle()
    it.set_busy(3, "b", True)
    it.set_busy(3, "c", True)
    needy(it, 3, "d")
    it.page_out_failed(4, "a")
    assert granted(idle(it, 5, "a")) == ["d"]  # opening again takes no session's position
    assert why(look(it, "a", 5)) == "nothing to run"
    it.close(6, "d")
    assert list(needy(it, 7, "e").page_outs) == ["a"]


# --- may it keep more? ----------------------------------------------------------------------------


def test_persistent_memory_may_grow_as_far_as_the_safety_rule_allows() -> None:
    it = scheduler()
    it.open(0, "a", spec(3, 2))
    it.open(0, "b", spec(1, 1))
    assert it.free(DEVICE) == 4 * GIB
    assert it.may_keep("a", 7 * GIB)
    assert not it.may_keep("a", 7 * GIB + 1)
    assert it.may_keep("a", 0)
    it.report(1, "a", 1, Demand(7 * GIB, 2 * GIB))
    assert look(it, "a", 1).lane is not None
    assert not it.may_keep("b", 2 * GIB)


def test_a_session_that_is_not_admitted_may_keep_what_would_fit() -> None:
    it = scheduler()
    it.open(0, "a", spec(3, 2))
    idle(it, 0, "b", 1, 1, paged_out_bytes=GIB)
    assert it.may_keep("b", 5 * GIB)
    assert not it.may_keep("b", 5 * GIB + 1)
    assert not it.may_keep("b", 2**62)
    with pytest.raises(KeyError, match="no session 'c' is open"):
        it.may_keep("c", 1)


def test_wrong_values_are_refused_with_a_sentence() -> None:
    it = scheduler()
    idle(it, 0, "a")
    with pytest.raises(ValueError, match="bytes that are paged out must not be negative"):
        it.paged_out(1, "a", -1)
    with pytest.raises(ValueError, match="bytes that are paged out must not be negative"):
        it.open(1, "b", spec(paged_out_bytes=-1))
    with pytest.raises(ValueError, match="bytes is out of range"):
        it.paged_out(1, "a", 2**63)
    with pytest.raises(KeyError, match="no session 'b' is open"):
        it.set_busy(1, "b", True)
    assert where(it, 1) == {"a": "in"}


# --- page-outs that a user asks for


def test_a_session_that_a_user_pages_out_stays_out_until_it_is_busy() -> None:
    it = three_idle()
    assert list(it.evict(3, "b").page_outs) == ["b"]
    assert why(look(it, "b", 3)) == "is asked to page out"
    it.paged_out(4, "b", GIB)
    assert where(it, 5) == {"a": "in", "b": "out", "c": "in"}
    assert why(look(it, "b", 5)) == "paged out: 1.0 GiB are on disk"
    assert list(it.set_busy(6, "b", True).page_ins) == ["b"]
    assert why(look(it, "b", 6.9)) == "its memory comes back from disk"  # as long as it went out
    assert why(look(it, "b", 7.1)) == "its cell runs and needs no turn now"


def test_a_user_cannot_page_out_a_session_that_is_busy_or_out() -> None:
    it = one_out()
    for id in "ad":
        with pytest.raises(ValueError, match="cannot be paged out"):
            it.evict(5, id)
    assert it.is_valid() == ""
