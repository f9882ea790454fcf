"""Rows: events at the broker's socket and descriptors, and clients that misuse it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil
import pytest

from jupyter_gpushare.errors import ConnectionLost, GpuShareError
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Curve, Demand
from jupyter_gpushare.wire.handoff_slot import write_handoff_token

from ..matrix import OF_A_BROKER, row
from ..scene import Scene
from .kernels import MEMBER, SMALL

HELLO = framing.encode(m.Hello(m.PROTOCOL))
MANY = 10_000  # connections
OURS = 500  # descriptors of this process, beyond those
DEAF_SECONDS = 10.0  # time for which we talk to a broker without reading its messages


@row("each first part of a message comes, and no more")
def half_a_message(scene: Scene) -> None:
    for length in range(len(HELLO)):
        with scene.connect() as connection:
            connection.sendall(HELLO[:length])


@row("garbage comes, on 300 connections")
def garbage(scene: Scene) -> None:
    chance = random.Random(7)
    for number in range(300):
        with scene.connect() as connection, contextlib.suppress(OSError):
            body = chance.randbytes(chance.randrange(1, 4096))
            length = len(body).to_bytes(framing.HEADER_BYTES, "big")
            connection.sendall((HELLO, b"")[number % 2] + (length, b"")[number % 3 == 0] + body)


@row("a message of 1 GB is announced, and begins")
def huge_message(scene: Scene) -> None:
    with scene.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall((1 << 30).to_bytes(framing.HEADER_BYTES, "big") + bytes(1 << 20))
        while connection.recv(1 << 16):
            pass


@row(f"{MANY:,} connections are opened that say nothing; a user may have 1,000", is_quick=False)
def many_connections(scene: Scene) -> float:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + OURS:
        pytest.skip(f"a process may have only {hard:,} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (MANY + OURS, hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(MANY):
            opened.enter_context(scene.connect())
        return scene.await_turn()


@row("a client never reads what it asks for")
def deaf_client(scene: Scene) -> None:
    with scene.connect() as connection:
        connection.sendall(HELLO)
        connection.settimeout(DEAF_SECONDS)
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(framing.encode(m.Look()))


@row("a client opens and closes sessions in a loop, 300 times", is_quick=False)
def opens_and_closes(scene: Scene) -> None:
    with scene.turn_meanwhile():
        for number in range(300):
            with Client.connect(scene.settings, "loop") as client:
                client.send(m.Open(f"loop{number % 7}", "loop", device="host", demand=SMALL))
                client.send(m.Request(1))


@row("a client opens sessions that rest in a loop, 300 times on one connection")
def rests_and_rests(scene: Scene) -> None:
    with scene.turn_meanwhile(), Client.connect(scene.settings, "loop") as client:
        for number in range(300):
            client.ask(m.Open(f"rest{number}", "rest", device="host"))
            client.send(m.Rests(0))
        assert [view.id for view in client.look().devices[0].resting] == ["rest299"]


@row("clients say that they have turns which no broker has granted, 50 times")
def claims_turns(scene: Scene) -> None:
    with scene.turn_meanwhile():
        for number in range(50):
            with Client.connect(scene.settings, "claims") as client:
                client.ask(m.Open(f"claim{number}", "claims", device="host", turn=1, holding=True))
                views = {view.id: view for view in client.look().devices[0].sessions}
                assert views[f"claim{number}"].state == "idle"


@row("the broker has no descriptor left, and has some again", is_quick=False)
def no_descriptors(scene: Scene) -> float:
    """A session that tries to open meanwhile is served afterwards."""
    pid = scene.broker_pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds() + 3, hard))
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(scene.connect())
        scene.await_turn()
        late = scene.party(MEMBER.replace("NAME", "late"))
    with scene.turn_meanwhile() as since:
        late.hear_until("had a turn")
    return since


@row("the socket's file is removed", OF_A_BROKER)
def socket_removed(scene: Scene) -> None:
    Path(scene.settings.socket).unlink()
    scene.look()


@row("the socket's directory is removed with all that is in it", OF_A_BROKER, is_quick=False)
def directory_removed(scene: Scene) -> float:
    """There are never two brokers."""
    with Client.connect(scene.settings, "tests") as witness:
        shutil.rmtree(Path(scene.settings.socket).parent)
        since = time.monotonic()
        assert scene.broker_pid != witness.welcome.pid
        assert witness.has_news()
        with pytest.raises(ConnectionLost):
            witness.receive()
    return since


@row(
    "the socket's directory becomes unreadable, the broker is killed, and all is mended",
    OF_A_BROKER,
    is_quick=False,
)
def directory_unreadable(scene: Scene) -> float:
    directory = Path(scene.settings.socket).parent
    pid = scene.broker_pid
    directory.chmod(0)
    try:
        scene.await_turn()  # a connected client needs no directory
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GpuShareError, match="Permission denied"):
            scene.look()
    finally:
        directory.chmod(0o700)
    return time.monotonic()


@row("clients speak protocols that there are not", is_quick=False)
def odd_protocols(scene: Scene) -> None:
    for number in (-1, 0, 2, 1 << 62):
        with scene.connect() as connection:
            connection.sendall(framing.encode(m.Hello(number)))
            connection.settimeout(DEAF_SECONDS)
            assert b"protocol" in connection.recv(1 << 16)


IMPOSSIBLE = [
    m.Report(-1, Demand()),
    m.Report(1 << 62, Demand(1 << 62, 1 << 62, measured=True)),
    m.Report(1, Demand(-1, -1, measured=True)),
    m.Report(1, Demand(), curve=Curve(-1.0, 0, (101, -1))),
    m.Keep(Demand(1 << 62, 1 << 62, measured=True)),
    m.PagedOut(-1),
    m.PagedOut(1 << 62),
    m.Rests(-1),
    m.Finish(7),
    m.Request(-1),
    m.Busy(True),
    m.NewKey("x" * 1000),
    m.Change("missing", weight=-1.0),
    m.Change(None, weight=float("inf"), priority=1 << 60),
    m.Preempt("missing"),
    m.Evict(""),
    m.Cancel("\x1b[2J\n"),
    m.Watch(-1.0),
    m.Account(1e300, -1e300),
]


@row("clients say what cannot be, with a session and without one, in each word", is_quick=False)
def impossible_words(scene: Scene) -> None:
    with scene.turn_meanwhile():
        for number, word in enumerate(2 * IMPOSSIBLE):
            with (
                Client.connect(scene.settings, "odd") as client,
                contextlib.suppress(GpuShareError),
            ):
                if number < len(IMPOSSIBLE):
                    client.ask(m.Open("odd", "odd", device="host"))
                client.send(word)
                client.look()


@row("a client opens the sessions of others by their ids, 100 times", is_quick=False)
def stolen_ids(scene: Scene) -> None:
    with scene.turn_meanwhile():
        ids = [view.id for view in scene.look().devices[0].sessions]
        for number in range(100):
            secret = "" if number % 2 else "0" * m.KEY_LENGTH
            with Client.connect(scene.settings, "thief") as client, pytest.raises(GpuShareError):
                client.ask(m.Open(ids[number % len(ids)], "thief", device="host", secret=secret))


@row("forged handoff messages come into each handoff slot, 100 times", is_quick=False)
def forged_handoff_tokens(scene: Scene) -> float:
    """Forged tokens give no session a turn."""
    names = handoff_slots(view.pid for view in scene.look().devices[0].sessions)
    assert len(names) >= 2
    forged = m.Grant(1, 1, 1 << 40, 1)
    with (
        scene.turn_meanwhile() as since,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as forger,
    ):
        forger.setblocking(False)
        for number, name in itertools.product(range(100), names):
            grant = msgspec.structs.replace(forged, turn=number)
            handoff_token = write_handoff_token("0" * m.KEY_LENGTH, grant)
            for said in (handoff_token, "", "x" * 500, f"{number} 1 0 1 0"):
                with contextlib.suppress(OSError):
                    forger.sendto(said.encode(), f"\0{name}")
    return since


def handoff_slots(pids: Iterable[int]) -> list[str]:
    """Return the names of handoff slots, which all users may read."""
    files = (file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {os.readlink(file) for file in files if file.is_symlink()}
    found = re.findall(r" ([0-9]+) @(gpushare-[0-9a-f]+)", Path("/proc/net/unix").read_text())
    return [name for number, name in found if f"socket:[{number}]" in sockets]


@row("clients claim hours of the device that they have never had, 30 times", is_quick=False)
def forged_bills(scene: Scene) -> None:
    with scene.turn_meanwhile():
        for number in range(30):
            with Client.connect(scene.settings, "forger") as client:
                opens = m.Open(f"bill{number}", "bill", device="host", demand=SMALL)
                claims = {"device_seconds": 36e3, "waited_seconds": 36e3, "iterations": 1 << 40}
                client.ask(msgspec.structs.replace(opens, **claims))
    with Client.connect(scene.settings, "tests") as client:
        accounts = client.ask(m.Account(0.0, time.time() + 3600))
    assert isinstance(accounts, m.Accounts)
    assert sum(account.device_seconds for account in accounts.rows) < 3600


@row("200 clients watch, and never read what they are told", is_quick=False)
def deaf_watchers(scene: Scene) -> float:
    with contextlib.ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(connection := scene.connect())
            connection.sendall(HELLO + framing.encode(m.Watch(0.01)))
        for _ in range(20):
            since = scene.await_turn()
    return since


@row("a client begins with 5,000 words, and says hello afterwards", is_quick=False)
def words_before_hello(scene: Scene) -> float:
    with scene.connect() as connection, contextlib.suppress(OSError):
        connection.settimeout(1.0)
        connection.sendall(5000 * framing.encode(m.Look()) + HELLO)
        while connection.recv(1 << 16):
            pass
    return time.monotonic()


@row("a client floods the broker with words for two seconds", is_quick=False)
def flood(scene: Scene) -> float:
    """The flooding client is slowed down, and others are not."""
    since = time.monotonic()
    with Client.connect(scene.settings, "flood") as client, contextlib.suppress(ConnectionLost):
        client.ask(m.Open("flood", "flood", device="host"))
        with scene.turn_meanwhile():
            while time.monotonic() < since + 2.0:
                client.send(*(100 * [m.Busy(True), m.Busy(False)]))
    return since
