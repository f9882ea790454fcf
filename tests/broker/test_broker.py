"""A real broker process on a real socket, with raw messages."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.errors import (
    BrokerUnavailable,
    ConnectionLost,
    DoesNotFit,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    NotPermitted,
    ProtocolError,
    UnknownDevice,
    UnknownSession,
)
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.launch import connect

from ..polling import TIMEOUT_SECONDS, next_of
from .listener import Speaker
from .processes import NOBODY, as_user, needs_root
from .requests_of_strangers import TO_ANOTHERS_SESSION

GB = 1 << 30
DEVICES = [Device("host", 64 * GB, "main memory")]


@pytest.fixture
def join(settings: Settings) -> Iterator[Callable[..., Client]]:
    """Open a session of the given name on a connection of its own; measured, so that it shares."""
    clients = []

    def join(name: str, **fields: object) -> Client:
        client = Client.connect(settings, "tests")
        clients.append(client)
        fields.setdefault("demand", m.Demand(1000, 1000, measured=True))
        client.ask(m.Open(id=name, name=name, device="host", **fields))  # type: ignore[arg-type]
        return client

    yield join
    for client in clients:
        client.close()


def request(client: Client, turn: int = 1) -> Client:
    client.send(m.Request(turn))
    return client


# --- start or find ----------------------------------------------------------------------------


def test_many_clients_at_once_start_one_broker(settings: Settings) -> None:
    pids: list[int] = []

    def find() -> None:
        with Client.connect(settings) as client:
            pids.append(client.welcome.pid)

    threads = [threading.Thread(target=find) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 12
    assert len({*pids, os.getpid()}) == 2


def test_a_second_broker_on_the_same_socket_says_so_and_ends(
    settings: Settings, broker_pid: int
) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.broker"], capture_output=True, text=True, cwd="/"
    )
    assert second.returncode == 1
    assert "a broker runs on" in second.stderr
    with Client.connect(settings) as client:
        assert client.welcome.pid == broker_pid


def test_no_other_user_can_reach_the_socket_by_default(settings: Settings, broker_pid: int) -> None:
    path = Path(settings.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_missing_broker_is_reported_where_none_may_be_started(settings: Settings) -> None:
    with pytest.raises(BrokerUnavailable, match="no broker answers on"):
        Client.connect(settings, start=False)


def test_a_socket_path_that_is_too_long_is_named_with_the_limit(settings: Settings) -> None:
    long = msgspec.structs.replace(settings, socket="/tmp/" + "x" * 120)
    with pytest.raises(InvalidValue, match="at most"):
        Client.connect(long)


def test_an_unused_broker_ends_by_itself(settings: Settings) -> None:
    brief = msgspec.structs.replace(settings, idle_exit_seconds=0.2)
    with Client.connect(brief) as client:
        descriptor = os.pidfd_open(client.welcome.pid)
    assert select.select([descriptor], [], [], TIMEOUT_SECONDS)[0]
    os.close(descriptor)
    assert not Path(settings.socket).exists()


def test_shutdown_ends_the_broker_and_takes_its_socket_away(settings: Settings) -> None:
    with Client.connect(settings) as client:
        descriptor = os.pidfd_open(client.welcome.pid)
        assert client.ask(m.Shutdown()) == m.Done()
    assert select.select([descriptor], [], [], TIMEOUT_SECONDS)[0]
    os.close(descriptor)
    assert not Path(settings.socket).exists()


# --- turns ------------------------------------------------------------------------------------


def test_one_session_holds_the_lane_and_the_next_gets_it_at_finish(
    join: Callable[..., Client],
) -> None:
    first, second = request(join("first")), join("second")
    assert isinstance(next_of(first, m.Grant), m.Grant)
    request(second)
    assert next_of(first, m.Yield) == m.Yield(1)
    first.send(m.Finish(1))
    assert isinstance(next_of(second, m.Grant), m.Grant)


def test_a_withdrawn_request_is_never_granted(join: Callable[..., Client]) -> None:
    first, second, third = request(join("first")), join("second"), join("third")
    next_of(first, m.Grant)
    request(second).send(m.Finish(1))
    second.look()  # by then that has come, before what another connection says
    request(third)
    first.send(m.Finish(1))
    next_of(third, m.Grant)
    second.send(m.Close())
    assert isinstance(second.receive(), m.Done), "no grant came in between"


def test_a_waiting_session_is_told_why_and_for_which_one(join: Callable[..., Client]) -> None:
    first, second = request(join("first")), join("second")
    next_of(first, m.Grant)
    wait = next_of(request(second), m.Wait)
    assert isinstance(wait, m.Wait)
    assert wait.holder == "first"
    assert wait.position == 1
    assert "first" in wait.reason


def test_a_closed_connection_frees_the_lane(join: Callable[..., Client]) -> None:
    first, second = request(join("first")), join("second")
    next_of(first, m.Grant)
    request(second)
    first.close()
    assert isinstance(next_of(second, m.Grant), m.Grant)


def test_a_killed_holder_frees_the_lane(settings: Settings, join: Callable[..., Client]) -> None:
    second = join("second")
    with HolderProcess() as process:
        request(second)
        os.kill(process.pid, signal.SIGKILL)
        assert isinstance(next_of(second, m.Grant), m.Grant)


def test_a_stopped_holder_becomes_overdue_and_its_lane_stays_closed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_LEASE_SECONDS", "0.2")
    brief = msgspec.structs.replace(settings, lease_seconds=0.2)
    with (
        Client.connect(brief) as subscriber,
        Client.connect(brief) as second,
        HolderProcess() as holder,
    ):
        os.kill(holder.pid, signal.SIGSTOP)
        second.ask(m.Open(id="second", name="second", demand=m.Demand(1, 1, measured=True)))
        request(second)
        for snapshot in subscriber.watch(0.05):
            states = {view.name: view.state for view in snapshot.devices[0].sessions}
            if states["holder"] == "overdue":
                break
        assert states == {"holder": "overdue", "second": "waiting"}
        os.kill(holder.pid, signal.SIGCONT)
        assert isinstance(next_of(second, m.Grant), m.Grant), (
            "it gives the turn back when it goes on"
        )


class HolderProcess:
    """A real process that holds the turn of a real session, and gives it back when asked to."""

    PROGRAM = """
import jupyter_gpushare as gpushare, time
with gpushare.session(name="holder") as session:
    session.enter(); session.boundary()
    print("holding", flush=True)
    while session.holding:
        session.boundary(); time.sleep(0.001)
    print("gave back", flush=True)
    input()
"""

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holding\n"
        return self.process

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


# --- bad input --------------------------------------------------------------------------------


def answer(connection: socket.socket) -> framing.ToClient:
    frames = framing.Frames()
    while True:
        data = connection.recv(65536)
        assert data, "closed without a word"
        for body in frames.feed(data):
            return framing.decode_from_broker(body)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


WRONG_FRAMES = (
    (frame(b"\x80garbage"), "protocol", "not a message"),
    (frame(b'{"type": "Nonsense"}'), "protocol", "Nonsense"),
    (frame(b'{"type": "Hello"}'), "protocol", "protocol"),
    (frame(b'{"type": "Hello", "protocol": "one"}'), "protocol", "whole number"),
    (frame(b'{"type": "Hello", "protocol": 999}'), "protocol", "speaks protocol 1, not 999"),
    (frame(b'{"type": "Request", "turn": 1}'), "protocol", "first message is Hello"),
    ((1 << 31).to_bytes(4, "big"), "limit", "at most"),
    (b"GET / HTTP/1.1\r\n\r\n", "limit", "at most"),
)


@pytest.mark.system
def test_a_wrong_frame_gets_one_clear_sentence_and_harms_no_other(
    settings: Settings, join: Callable[..., Client]
) -> None:
    neighbour = request(join("neighbour"))
    next_of(neighbour, m.Grant)
    for data, code, words in WRONG_FRAMES:
        with connect(settings) as connection:
            connection.sendall(data)
            error = answer(connection)
        assert isinstance(error, m.Error)
        assert (error.code, words in error.message) == (code, True), data
    assert neighbour.look().devices[0].sessions[0].state == "running"


def test_half_a_frame_harms_no_other(settings: Settings, join: Callable[..., Client]) -> None:
    connection = connect(settings)
    connection.sendall(framing.encode(m.Hello(m.PROTOCOL))[:7])
    next_of(request(join("neighbour")), m.Grant)
    connection.sendall(framing.encode(m.Hello(m.PROTOCOL))[7:])
    assert isinstance(answer(connection), m.Welcome)
    connection.close()


def squeezable(*options: tuple[int, float]) -> m.Demand:
    return m.Demand(0, 8, measured=True, options=tuple(m.SqueezeOption(*one) for one in options))


@pytest.mark.system
@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"device": "cuda:99"}, UnknownDevice, "there is host"),
        ({"weight": 0.0}, InvalidValue, "weight"),
        ({"weight": -1.0}, InvalidValue, "weight"),
        ({"priority": 1000}, InvalidValue, "priority"),
        ({"id": "no spaces, please"}, InvalidValue, "id"),
        ({"iterations": -1}, InvalidValue, "0 upwards"),
        ({"turn": -1}, InvalidValue, "0 upwards"),
        ({"squeezed_bytes": -1}, InvalidValue, "0 upwards"),
        ({"demand": m.Demand(-1, 0)}, InvalidValue, "bytes"),
        ({"demand": m.Demand(1 << 60, 0, measured=True)}, DoesNotFit, "B"),
        ({"demand": squeezable((9, 1.0))}, InvalidValue, "first option .* 8 bytes .* not 9 bytes"),
        ({"demand": squeezable((8, 1.1))}, InvalidValue, "first option .* not 8 bytes at 1.1"),
        ({"demand": squeezable((8, 1.0), (8, 1.2))}, InvalidValue, "fewer bytes than the one"),
        ({"demand": squeezable((8, 1.0), (6, 1.2), (4, 1.1))}, InvalidValue, "is not faster"),
        ({"demand": squeezable((8, 1.0), (-1, 1.2))}, InvalidValue, "0 bytes or more"),
        ({"demand": squeezable((8, 1.0), (6, 1e9))}, InvalidValue, "at most 1000"),
        (
            {"demand": squeezable((8, 1.0), *((7 - i, 2.0) for i in range(16)))},
            InvalidValue,
            "at most 16 options, not 17",
        ),
        (
            {"demand": m.Demand(0, 8, measured=False, options=squeezable((8, 1.0)).options)},
            InvalidValue,
            "only once it is measured",
        ),
        ({"bears_slowdown": 0.9}, InvalidValue, "bears a slowdown of 1, .* not 0.9"),
    ],
)
def test_a_wrong_open_is_refused_and_leaves_nothing(
    service: Service, fields: dict[str, Any], error: type[GpuShareError], words: str
) -> None:
    client = Speaker(service, "ada")
    client.says(m.Open(**{"id": "a", "name": "a", "device": "host", **fields}))
    refused = client.last(m.Error)
    assert refused.code == error.code
    assert re.search(words, refused.message)
    assert service.snapshot(0.0).devices[0].sessions == []


def test_a_message_without_a_session_says_what_to_do(settings: Settings) -> None:
    with Client.connect(settings) as client:
        client.send(m.Request(1))
        refused = client.receive()
        assert isinstance(refused, m.Error)
        assert "open one first" in refused.message


def test_an_unknown_policy_names_those_that_exist(settings: Settings) -> None:
    with Client.connect(settings) as client:
        with pytest.raises(InvalidValue, match="fair"):
            client.ask(m.SetPolicy("fastest"))
        assert client.look().policy == "fair"


def test_changing_an_unknown_session_is_an_error(settings: Settings) -> None:
    with Client.connect(settings) as client, pytest.raises(UnknownSession):
        client.ask(m.Change("nobody", weight=2.0))


def test_one_connection_carries_one_session(join: Callable[..., Client]) -> None:
    with pytest.raises(ProtocolError, match="one connection carries one"):
        join("first").ask(m.Open(id="second", name="second"))


def test_a_report_larger_than_the_device_is_refused_once_with_the_numbers(
    join: Callable[..., Client],
) -> None:
    client = join("first")
    too_large = m.Report(1, m.Demand(1 << 60, 0, measured=True))
    client.send(too_large, too_large, m.Request(1))
    refused = client.receive()
    assert isinstance(refused, m.Error)
    assert refused.code == DoesNotFit.code
    assert str(1 << 60) in refused.message
    assert isinstance(client.receive(), m.Grant)


def test_opening_again_is_harmless(settings: Settings, join: Callable[..., Client]) -> None:
    client = join("first")
    client.ask(m.Open(id="first", name="renamed", device="host"))
    assert [view.name for view in client.look().devices[0].sessions] == ["renamed"]


def test_a_newer_connection_of_a_session_replaces_the_older(join: Callable[..., Client]) -> None:
    older, newer = join("first"), join("first")
    older.close()
    assert [view.name for view in newer.look().devices[0].sessions] == ["first"]


def test_a_name_reaches_other_screens_without_control_characters(
    join: Callable[..., Client],
) -> None:
    client = join("first")
    client.ask(m.Open(id="first", name="\x1b[31mred\n" + "x" * 1000, device="host"))
    (view,) = client.look().devices[0].sessions
    assert view.name.startswith("?[31mred?")
    assert len(view.name) == 200


def test_too_many_sessions_are_refused_with_the_limit(settings: Settings) -> None:
    tight = msgspec.structs.replace(settings, max_sessions_per_user=1)
    with Client.connect(tight) as first, Client.connect(tight) as second:
        first.ask(m.Open(id="a", name="a"))
        with pytest.raises(LimitExceeded, match="1 sessions are the limit"):
            second.ask(m.Open(id="b", name="b"))


def test_a_flood_of_messages_ends_its_own_connection_only(settings: Settings) -> None:
    tight = msgspec.structs.replace(settings, messages_per_second=10)
    with Client.connect(tight) as neighbour, Client.connect(tight) as flood:
        flood.send(*[m.Look()] * 1000)
        refused = next_of(flood, m.Error)
        assert isinstance(refused, m.Error)
        assert refused.code == LimitExceeded.code
        with pytest.raises(ConnectionLost):
            flood.receive()
        assert neighbour.look().version


# --- viewers --------------------------------------------------------------------------------------


def test_a_watcher_sees_changes(settings: Settings, join: Callable[..., Client]) -> None:
    with Client.connect(settings) as subscriber:
        snapshots = subscriber.watch(0.05)
        assert next(snapshots).devices[0].sessions == []
        join("first")
        assert [view.name for view in next(snapshots).devices[0].sessions] == ["first"]


@pytest.mark.system
def test_a_watcher_that_does_not_read_gets_only_the_newest(
    settings: Settings, join: Callable[..., Client]
) -> None:
    clients = [join(f"s{number}") for number in range(60)]
    with Client.connect(settings) as subscriber, Client.connect(settings) as control:
        subscriber.send(m.Watch(0.05))
        for _ in range(40):  # some 40 snapshots of 30 kB would fill any socket's buffer
            for client in clients[:5]:
                client.send(m.Report(1, m.Demand(1000, 1000, measured=True)))
            control.look()
            time.sleep(0.06)
        last = control.look().sequence
        seen = []
        for snapshot in subscriber.watch(0.05):
            seen.append(snapshot.sequence)
            if snapshot.sequence >= last:
                break
        assert seen == sorted(seen)
        assert len(seen) < 40


def test_the_snapshot_has_the_documented_keys(join: Callable[..., Client]) -> None:
    client = request(join("first"))
    next_of(client, m.Grant)
    device_snapshot = msgspec.to_builtins(client.look())
    assert {"version", "broker", "policy", "devices"} <= set(device_snapshot)
    assert {"pid", "protocol", "started"} <= set(device_snapshot["broker"])
    (device,) = device_snapshot["devices"]
    assert {"name", "capacity_bytes", "lanes", "sessions"} <= set(device)
    assert {"id", "bytes", "holder", "members"} <= set(device["lanes"][0])
    promised = (
        "id name user pid state persistent_bytes ephemeral_bytes lane place waiting_seconds"
        " expected_wait_seconds reason device_seconds iterations"
    )
    assert set(promised.split()) <= set(device["sessions"][0])


# --- several users ----------------------------------------------------------------------------


@pytest.mark.system
@needs_root
@pytest.mark.usefixtures("open_to_all")
def test_another_user_may_look_but_not_touch(
    settings: Settings, join: Callable[..., Client]
) -> None:
    client = join("first")
    before = client.look()
    messages = [*TO_ANOTHERS_SESSION, m.Open(id="mine", name="mine", device="host", priority=5)]
    codes = as_user(NOBODY, lambda: [code_of_answer(settings, each) for each in messages])
    assert codes == [NotPermitted.code] * len(messages)
    assert client.look().policy == before.policy
    (view,) = client.look().devices[0].sessions
    assert (view.name, view.weight, view.state) == ("first", 1.0, "idle")


def code_of_answer(settings: Settings, message: m.Message) -> str:
    with Client.connect(settings, start=False) as client:
        client.send(message)
        return getattr(client.receive(), "code", "accepted")


# --- a new broker -----------------------------------------------------------------------------


@pytest.mark.system
def test_after_a_crash_the_holder_keeps_its_turn(
    settings: Settings, join: Callable[..., Client], broker_pid: int
) -> None:
    next_of(request(join("first")), m.Grant)
    next_of(request(join("second")), m.Wait)
    os.kill(broker_pid, signal.SIGKILL)
    second = Client.connect(settings)
    demand = m.Demand(1000, 1000, measured=True)
    second.ask(
        m.Open(id="second", name="second", device="host", demand=demand, turn=1, waiting=True)
    )
    first = Client.connect(settings)
    first.ask(m.Open(id="first", name="first", device="host", demand=demand, turn=1, holding=True))
    assert next_of(first, m.Yield) == m.Yield(1), "the waiter that came back first was not granted"
    assert {view.name: view.state for view in first.look().devices[0].sessions} == {
        "first": "running",
        "second": "waiting",
    }
    first.send(m.Finish(1))
    assert isinstance(next_of(second, m.Grant), m.Grant)
    first.close()
    second.close()
