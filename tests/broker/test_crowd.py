"""Nobody keeps others waiting at the broker, with however many connections and messages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec
import pytest

from jupyter_gpushare.broker.crowd import (
    PART,
    PERIOD_SECONDS,
    SAVED_SECONDS,
    SLICE_SECONDS,
    Crowd,
    Party,
)
from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import LimitExceeded
from jupyter_gpushare.protocol import Busy, Demand, Look, Open, Snapshot, Watch
from jupyter_gpushare.settings import Settings

MESSAGES = 1500  # that the broker reads in one go


class Loop:
    """An event loop that calls when a test says so; what it was asked for stands in `delays`."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def later(self, delay: float, call: Callable[[], None]) -> None:
        self.delays.append(delay)
        self._call = call

    def turns(self) -> None:
        self._call()


class Chatterbox:
    """It has so many messages to say, each of which costs a slice."""

    def __init__(self, crowd: Crowd, party: Party, messages: int) -> None:
        self._crowd, self._party, self.messages = crowd, party, messages

    def work(self) -> None:
        if self.messages and self._party.has_time:
            self.messages -= 1
            self._party.spend(SLICE_SECONDS)
        if self.messages:
            self._crowd.wait(self._party, self)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def crowd(loop: Loop) -> Crowd:
    return Crowd(2, loop.later)


def test_a_user_with_too_many_connections_is_refused_and_others_are_not(crowd: Crowd) -> None:
    first = crowd.join("eve")
    assert crowd.join("eve") is first
    with pytest.raises(LimitExceeded, match="eve has 2 connections to the broker"):
        crowd.join("eve")
    crowd.join("ada")
    crowd.leave(first)
    assert crowd.join("eve") is first


def test_a_user_has_a_slice_in_each_period_whatever_the_connections(crowd: Crowd) -> None:
    party = crowd.join("eve")
    party.begin(1.0)
    party.spend(SLICE_SECONDS)
    crowd.join("eve").begin(1.0 + PERIOD_SECONDS / 2)
    assert not party.has_time
    party.begin(1.0 + PERIOD_SECONDS)
    assert party.has_time


def test_all_users_who_wait_are_looked_after_before_one_of_them_is_again(
    loop: Loop, crowd: Crowd
) -> None:
    eve, ada = (crowd.join(user) for user in ("eve", "ada"))
    floods = [Chatterbox(crowd, eve, 3) for _ in range(2)]
    quiet = Chatterbox(crowd, ada, 1)
    for one in (*floods, quiet):
        one.work()
    assert ([flood.messages for flood in floods], quiet.messages) == ([2, 3], 0)
    loop.turns()
    loop.turns()
    assert [flood.messages for flood in floods] == [1, 2], "so are connections of a user"


def test_who_goes_on_and_on_has_a_part_of_the_loop_once_what_was_saved_is_spent() -> None:
    party, now, spent = Party("eve"), 0.0, 0.0
    while now < 100 * SAVED_SECONDS:
        party.refresh(now)
        step = SLICE_SECONDS if party.has_time else 0.0
        party.spend(step)
        spent += step
        now += max(step, SLICE_SECONDS / 4)
    assert spent == pytest.approx(SAVED_SECONDS + PART * now, rel=0.02)


def test_where_nobody_has_anything_saved_the_processor_rests(loop: Loop, crowd: Crowd) -> None:
    party = crowd.join("eve")
    Chatterbox(crowd, party, 1)
    party.spend(2 * SAVED_SECONDS)
    crowd.wait(party, Chatterbox(crowd, party, 1))
    assert loop.delays == [PERIOD_SECONDS]


# --- a real broker --------------------------------------------------------------------------------


def test_a_connection_too_many_is_told_so_in_one_sentence(settings: Settings) -> None:
    tight = msgspec.structs.replace(settings, max_connections_per_user=2)
    with Client.connect(tight) as first:
        second = Client.connect(tight)
        for _ in range(20):
            with pytest.raises(LimitExceeded, match="has 2 connections to the broker"):
                Client.connect(tight)
        second.close()
        first.look()
        Client.connect(tight).close()


def test_a_watcher_too_many_is_refused_and_the_others_see_on(settings: Settings) -> None:
    tight = msgspec.structs.replace(settings, max_watchers_per_user=1)
    with Client.connect(tight) as first, Client.connect(tight) as second:
        first.send(Watch(), Watch())  # which is one
        assert isinstance(first.receive(), Snapshot)  # before the second is heard
        with pytest.raises(LimitExceeded, match="1 watchers are the limit"):
            second.ask(Watch())
        assert second.look().version


def test_a_neighbour_is_answered_in_the_midst_of_a_flood(
    settings: Settings, broker_pid: int
) -> None:
    """Each message of the flood makes the next snapshot a later one."""
    with Client.connect(settings) as flood, Client.connect(settings) as neighbour:
        flood.ask(Open("flood", "flood", device="host", demand=Demand(1, 1, measured=True)))
        before = neighbour.look().sequence
        os.kill(broker_pid, signal.SIGSTOP)
        flood.send(*[Busy(busy) for busy in [False, True] * (MESSAGES // 2)], Look())
        neighbour.send(Look())
        os.kill(broker_pid, signal.SIGCONT)
        seen, last = neighbour.receive(), flood.receive()
        assert isinstance(seen, Snapshot)
        assert isinstance(last, Snapshot)
        assert last.sequence >= before + MESSAGES
        assert seen.sequence < before + MESSAGES / 2
