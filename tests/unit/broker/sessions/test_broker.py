"""A real broker process on a real socket."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.errors import ConnectionLost, LimitExceeded
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand, SqueezeOption

from ....makers import maker
from ....polling import TIMEOUT_SECONDS, next_of
from ..listener import Speaker
from ..processes import run_broker

GB = 1 << 30
DEVICES = [Device("host", 64 * GB, "main memory")]
Join = Callable[..., Client]


@pytest.fixture
def join(settings: Settings) -> Iterator[Join]:
    """Open a session of this name on a new connection. Its demand is measured, so that it
    shares."""

    def join(name: str) -> Client:
        client = Client.connect(settings, "tests")
        demand = Demand(1000, 1000, measured=True)
        client.ask(m.Open(id=name, name=name, device="host", demand=demand))
        return client

    with maker(join, Client.close) as joined:
        yield joined


# --- start or find ----------------------------------------------------------------------------


def test_many_clients_at_once_start_one_broker(settings: Settings) -> None:
    def found(_: int) -> int:
        with Client.connect(settings) as client:
            return client.welcome.pid

    with ThreadPoolExecutor(12) as threads:
        pids = {*threads.map(found, range(12))}
    assert len({*pids, os.getpid()}) == 2


def test_a_second_broker_on_the_same_socket_says_so_and_ends(
    settings: Settings, broker_pid: int
) -> None:
    second = run_broker()
    assert second.returncode == 1
    assert "a broker runs on" in second.stderr
    with Client.connect(settings) as client:
        assert client.welcome.pid == broker_pid


@pytest.mark.parametrize("is_told", [False, True])
def test_a_broker_that_is_unused_or_told_to_ends_and_takes_its_socket_away(
    settings: Settings, is_told: bool
) -> None:
    """An unused broker also removes the live changes."""
    brief = msgspec.structs.replace(settings, idle_exit_seconds=0.0 if is_told else 0.2)
    with Client.connect(brief) as client:
        client.ask(m.SetPolicy("las"))
        descriptor = os.pidfd_open(client.welcome.pid)
        if is_told:
            assert client.ask(m.Shutdown()) == m.Done()
    assert select.select([descriptor], [], [], TIMEOUT_SECONDS)[0]
    os.close(descriptor)
    assert not Path(settings.socket).exists()
    assert Path(settings.socket).with_suffix(".changes").exists() == is_told


# --- bad input --------------------------------------------------------------------------------


def squeezable(*options: tuple[int, float]) -> Demand:
    return Demand(0, 8, measured=True, options=tuple(SqueezeOption(*one) for one in options))


@pytest.mark.system
@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"device": "cuda:99"}, "unknown_device", "there is host"),
        ({"weight": 0.0}, "invalid", "weight"),
        ({"priority": 1000}, "invalid", "priority"),
        ({"id": "no spaces, please"}, "invalid", "id"),
        ({"iterations": -1}, "invalid", "0 upwards"),
        ({"turn": -1}, "invalid", "0 upwards"),
        ({"squeezed_bytes": -1}, "invalid", "0 upwards"),
        ({"demand": Demand(-1, 0)}, "invalid", "bytes"),
        ({"demand": Demand(1 << 60, 0, measured=True)}, "does_not_fit", "B"),
        ({"demand": squeezable((9, 1.0))}, "invalid", "first option .* 8 bytes .* not 9 bytes"),
        ({"demand": squeezable((8, 1.1))}, "invalid", "first option .* not 8 bytes at 1.1"),
        ({"demand": squeezable((8, 1.0), (6, 1e9))}, "invalid", "at most 1000"),
        (
            {"demand": squeezable((8, 1.0), *((7 - i, 2.0) for i in range(16)))},
            "invalid",
            "at most 16 options, not 17",
        ),
        (
            {"demand": Demand(0, 8, measured=False, options=squeezable((8, 1.0)).options)},
            "invalid",
            "only once it is measured",
        ),
        ({"bears_slowdown": 0.9}, "invalid", "bears a slowdown of 1, .* not 0.9"),
    ],
)
def test_a_wrong_open_is_refused_and_leaves_nothing(
    service: Service, fields: dict[str, Any], code: str, words: str
) -> None:
    client = Speaker(service, "ada")
    client.says(m.Open(**{"id": "a", "name": "a", "device": "host", **fields}))
    refused = client.last(m.Error)
    assert refused.code == code
    assert re.search(words, refused.message)
    assert service.snapshot(0.0).devices[0].sessions == []


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (m.Request(1), "unknown_session", "open one first"),
        (m.Change("nobody", weight=2.0), "unknown_session", "nobody"),
        (m.SetPolicy("fastest"), "invalid", "fair"),
    ],
    ids=str,
)
def test_a_message_about_what_there_is_not_is_refused_in_a_sentence(
    service: Service, message: framing.ToBroker, code: str, words: str
) -> None:
    client = Speaker(service, "ada")
    client.is_owner = True
    refused = client.says(message).last(m.Error)
    assert (refused.code, words in refused.message) == (code, True)


def test_one_connection_carries_one_session(service: Service) -> None:
    refused = Speaker(service, "ada").says(m.Open("a", "a")).says(m.Open("b", "b")).last(m.Error)
    assert "one connection carries one" in refused.message


def test_a_name_reaches_other_screens_without_control_characters(join: Join) -> None:
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
        assert refused.code == LimitExceeded.code
        with pytest.raises(ConnectionLost):
            flood.receive()
        assert neighbour.look().version


@pytest.mark.system
def test_a_watcher_that_does_not_read_gets_only_the_newest(settings: Settings, join: Join) -> None:
    clients = [join(f"s{number}") for number in range(60)]
    with Client.connect(settings) as subscriber, Client.connect(settings) as control:
        subscriber.send(m.Watch(0.05))
        for _ in range(40):  # some 40 snapshots of 30 kB would fill any socket's buffer
            for client in clients[:5]:
                client.send(m.Report(1, Demand(1000, 1000, measured=True)))
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
