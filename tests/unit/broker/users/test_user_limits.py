"""No number of connections and messages of one user keeps others waiting at the broker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.broker.transport import rate_limit
from jupyter_gpushare.broker.transport.rate_limit import Budget, RateLimiter, SilentConnections
from jupyter_gpushare.errors import ConnectionLost, LimitExceeded
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import encode
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.wire.snapshot import Snapshot

from ....conftest import Sessions
from ....polling import until

MESSAGES = 1500  # that the broker reads in one go


class Loop:
    """An event loop that makes its calls on demand of a test. `delays` has the requested times."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def later(self, delay: float, call: Callable[[], None]) -> None:
        self.delays.append(delay)
        self._call = call

    def turns(self) -> None:
        self._call()


class Chatterbox:
    """A connection with `messages` messages, each of which costs a slice."""

    def __init__(self, rate_limiter: RateLimiter, budget: Budget, messages: int) -> None:
        self._rate_limiter, self._budget, self.messages = rate_limiter, budget, messages

    def work(self) -> None:
        if self.messages and self._budget.has_time:
            self.messages -= 1
            self._budget.spend(rate_limit.SLICE_SECONDS)
        if self.messages:
            self._rate_limiter.wait(self._budget, self.work)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def rate_limiter(loop: Loop) -> RateLimiter:
    return RateLimiter(2, loop.later)


def test_a_user_has_a_slice_in_each_period_whatever_the_connections(
    rate_limiter: RateLimiter,
) -> None:
    budget = rate_limiter.join("eve")
    budget.begin(1.0)
    budget.spend(rate_limit.SLICE_SECONDS)
    rate_limiter.join("eve").begin(1.0 + rate_limit.PERIOD_SECONDS / 2)
    assert not budget.has_time
    budget.begin(1.0 + rate_limit.PERIOD_SECONDS)
    assert budget.has_time


def test_all_users_who_wait_are_looked_after_before_one_of_them_is_again(
    loop: Loop, rate_limiter: RateLimiter
) -> None:
    eve, ada = (rate_limiter.join(user) for user in ("eve", "ada"))
    floods = [Chatterbox(rate_limiter, eve, 3) for _ in range(2)]
    quiet = Chatterbox(rate_limiter, ada, 1)
    for one in (*floods, quiet):
        one.work()
    assert ([flood.messages for flood in floods], quiet.messages) == ([2, 3], 0)
    loop.turns()
    loop.turns()
    assert [flood.messages for flood in floods] == [1, 2], "so are connections of a user"


def test_a_user_that_exceeds_the_budget_has_a_part_of_the_loop_once_its_savings_are_spent() -> None:
    budget, now, spent = Budget("eve"), 0.0, 0.0
    while now < 100 * rate_limit.SAVED_SECONDS:
        budget.refresh(now)
        step = rate_limit.SLICE_SECONDS if budget.has_time else 0.0
        budget.spend(step)
        spent += step
        now += max(step, rate_limit.SLICE_SECONDS / 4)
    assert spent == pytest.approx(rate_limit.SAVED_SECONDS + rate_limit.PART * now, rel=0.02)


def test_where_no_user_has_savings_the_processor_rests(
    loop: Loop, rate_limiter: RateLimiter
) -> None:
    budget = rate_limiter.join("eve")
    Chatterbox(rate_limiter, budget, 1)
    budget.spend(2 * rate_limit.SAVED_SECONDS)
    rate_limiter.wait(budget, Chatterbox(rate_limiter, budget, 1))
    assert loop.delays == [rate_limit.PERIOD_SECONDS]


class Caller:
    """A connection that has not been authenticated yet."""

    def __init__(
        self, silent_connections: SilentConnections, pid: int, uid: int = 7, spoke: bool = False
    ) -> None:
        self.uid, self.pid, self.has_spoken, self.is_open = uid, pid, spoke, True
        silent_connections.join(self)

    def end_silent(self) -> None:
        self.is_open = False


def test_the_oldest_silent_connection_of_a_process_is_closed_for_a_new_one() -> None:
    silent_connections = SilentConnections(1000)
    spoke = Caller(silent_connections, 1, spoke=True)
    other = Caller(silent_connections, 2)
    silent = [Caller(silent_connections, 1) for _ in range(rate_limit.MOST_SILENT + 2)]
    assert [one.is_open for one in silent] == [False] * 3 + [True] * (rate_limit.MOST_SILENT - 1)
    assert (spoke.is_open, other.is_open) == (True, True)
    silent_connections.leave(silent[-1])
    assert Caller(silent_connections, 1).is_open
    assert silent[3].is_open


def test_of_invisible_processes_the_oldest_connection_of_the_uid_is_closed() -> None:
    silent_connections = SilentConnections(100)
    callers = [Caller(silent_connections, 0) for _ in range(101)]
    stranger = Caller(silent_connections, 0, uid=8)
    assert [one.is_open for one in callers] == [False] + [True] * 100
    assert stranger.is_open


class Sleeper:
    """A connection that leaves `unread` bytes unread."""

    def __init__(self, unread: int) -> None:
        self.unread_bytes = unread

    def stop(self) -> None:
        self.unread_bytes = 0


def test_the_connection_that_has_read_least_ends_where_a_user_leaves_too_much_unread(
    rate_limiter: RateLimiter,
) -> None:
    eve, ada = rate_limiter.budget("eve"), rate_limiter.budget("ada")
    sleepers = [Sleeper(rate_limit.MAX_BACKLOG_BYTES // 4 + number) for number in range(5)]
    other = Sleeper(rate_limit.MAX_BACKLOG_BYTES // 2)
    ada.falls_behind(other, 0)
    for one in sleepers:
        eve.falls_behind(one, 100)
    assert [bool(one.unread_bytes) for one in sleepers] == [True, True, True, True, False]
    sleepers[0].unread_bytes = 0  # it has read
    eve.falls_behind(Sleeper(rate_limit.MAX_BACKLOG_BYTES // 4), 100)
    assert all(one.unread_bytes for one in [*sleepers[1:4], other])


# --- a real broker --------------------------------------------------------------------------------


def test_silent_connections_of_a_process_keep_no_other_out(settings: Settings) -> None:
    """The process has as many silent connections as a user may have."""
    tight = msgspec.structs.replace(settings, max_connections_per_user=100)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Client.connect(tight))
        silent = [stack.enter_context(connect(tight)) for _ in range(200)]
        with Client.connect(tight) as client:
            assert client.look().version
        assert b"have not said who they are" in silent[0].recv(4096)


@pytest.mark.system
def test_connections_that_do_not_read_cost_the_broker_no_more_than_a_total(
    settings: Settings, broker_pid: int, sessions: Sessions
) -> None:
    """The answer to the last message of each connection shows that all earlier messages were
    handled."""
    with contextlib.ExitStack() as stack:
        sleepers = [stack.enter_context(Client.connect(settings)) for _ in range(150)]
        for number, sleeper in enumerate(sleepers):
            name = f"{number} {'n' * 200}"  # so that Snapshots are large
            sleeper.ask(m.Open(f"s{number}", name, "host", demand=Demand(1, 1, measured=True)))
        looks = (900 << 10) // len(encode(sleepers[0].look()))  # each leaves less than it may
        before = peak_bytes(broker_pid)
        for message in [*[m.Look()] * looks, m.Request(1)]:
            for sleeper in sleepers:
                with contextlib.suppress(ConnectionLost):
                    sleeper.send(message)
        until(lambda: not any(view.state == "idle" for view in sessions().values()))
        assert peak_bytes(broker_pid) - before < 2 * rate_limit.MAX_BACKLOG_BYTES


def peak_bytes(pid: int) -> int:
    """Return the peak memory of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kibibytes) << 10


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


def test_a_watcher_too_many_is_refused_and_the_others_still_see(settings: Settings) -> None:
    tight = msgspec.structs.replace(settings, max_watchers_per_user=1)
    with Client.connect(tight) as first, Client.connect(tight) as second:
        first.send(m.Watch(), m.Watch())  # which is one
        assert isinstance(first.receive(), Snapshot)  # before the second is handled
        with pytest.raises(LimitExceeded, match="1 watchers are the limit"):
            second.ask(m.Watch())
        assert second.look().version


def test_a_neighbour_is_answered_in_the_midst_of_a_flood(
    settings: Settings, broker_pid: int
) -> None:
    """Each message of the flood changes the state, so the next snapshot has to be made again."""
    with Client.connect(settings) as flood, Client.connect(settings) as neighbour:
        flood.ask(m.Open("flood", "flood", device="host", demand=Demand(1, 1, measured=True)))
        before = neighbour.look().sequence
        os.kill(broker_pid, signal.SIGSTOP)
        flood.send(*[m.Busy(busy) for busy in [False, True] * (MESSAGES // 2)], m.Look())
        neighbour.send(m.Look())
        os.kill(broker_pid, signal.SIGCONT)
        seen, last = neighbour.receive(), flood.receive()
        assert isinstance(seen, Snapshot)
        assert isinstance(last, Snapshot)
        assert last.sequence >= before + MESSAGES
        assert seen.sequence < before + MESSAGES / 2
