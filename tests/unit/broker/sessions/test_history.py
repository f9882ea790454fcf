"""The history of turns and users in a broker, with time set by a test."""

from __future__ import annotations

from jupyter_gpushare.broker.snapshot.history import MAX_TURNS, TWELFTHS, History
from jupyter_gpushare.wire.snapshot import TurnView, UserView

ADA, GRACE = ("ada", 1), ("grace", 1)


def test_short_turns_are_one_with_the_seconds_that_were_really_held() -> None:
    history = History()
    for step in range(4):  # a and b in turn, a quarter of a second each
        history.follow(10 + step / 2, {"a": ADA})
        history.follow(10.25 + step / 2, {"b": GRACE})
    history.follow(12.0, {})
    assert history.turns(12.0) == [
        TurnView("a", 1, began=2.0, ended=0.25, held=1.0),
        TurnView("b", 1, began=1.75, ended=0.0, held=1.0),
    ]


def test_a_view_that_began_long_ago_is_not_added_to() -> None:
    history = History()
    history.follow(10.0, {"a": ADA})
    history.follow(12.5, {})
    history.follow(12.6, {"a": ADA})
    assert [turn.began for turn in history.turns(13.0)] == [3.0, 0.4]


def test_turns_are_forgotten_after_a_minute_and_a_long_one_is_not() -> None:
    history = History()
    history.follow(0.0, {"a": ADA, "b": GRACE})
    history.follow(1.0, {"b": GRACE})
    assert [turn.session for turn in history.turns(60.0)] == ["a", "b"]
    assert history.turns(200.0) == [TurnView("b", 1, began=200.0, ended=None, held=200.0)]


def test_there_is_a_bound_however_many_take_turns() -> None:
    history = History()
    for number in range(2 * MAX_TURNS):
        history.follow(number / 100, {f"s{number}": ADA})
    turns = history.turns(2 * MAX_TURNS / 100)
    assert len(turns) == MAX_TURNS + 1
    assert turns[-1].session == f"s{2 * MAX_TURNS - 1}"


def test_a_users_seconds_lie_in_the_five_minutes_in_which_they_were_used() -> None:
    history = History()
    history.follow(-4000.0, {})
    history.follow(290.0, {"a": ADA, "b": ADA})
    history.follow(310.0, {"b": ADA})
    (ada,) = history.users(320.0)
    assert ada == UserView("ada", [0.0] * (TWELFTHS - 2) + [20.0, 30.0])


def test_nothing_is_told_of_the_time_before_a_broker_began() -> None:
    history = History()
    history.follow(600.0, {"a": ADA})
    assert history.users(610.0) == [UserView("ada", [10.0])]
    assert history.users(910.0) == [UserView("ada", [300.0, 10.0])]
    assert len(history.users(9000.0)[0].used_seconds) == TWELFTHS


def test_a_user_is_forgotten_after_an_hour() -> None:
    history = History()
    history.follow(10.0, {"a": ADA})
    history.follow(20.0, {"b": GRACE})
    history.follow(4000.0, {})
    assert [user.name for user in history.users(4000.0)] == ["grace"]
    assert history.users(4000.0 + 3600.0 + 300.0) == []
