"""Rows: what happens to the broker's socket and descriptors, and who speaks with it badly."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from jupyter_gpushare import protocol
from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import ConnectionLost, GpuShareError
from jupyter_gpushare.protocol import Demand, Hello, Look, Open, Request

from .matrix import OF_A_BROKER, row
from .scene import Scene

HELLO = protocol.encode(Hello(protocol.PROTOCOL))
MANY = 10_000  # connections
OURS = 500  # descriptors of this process, beyond those
DEAF_SECONDS = 10.0  # so long we talk to a broker without reading what it says


@row("each first part of a message comes, and no more")
def half_a_message(scene: Scene) -> float:
    since = time.monotonic()
    for length in range(len(HELLO)):
        with scene.connect() as connection:
            connection.sendall(HELLO[:length])
    return since


@row("garbage comes, on 300 connections")
def garbage(scene: Scene) -> float:
    chance = random.Random(7)
    since = time.monotonic()
    for number in range(300):
        with scene.connect() as connection, contextlib.suppress(OSError):
            body = chance.randbytes(chance.randrange(1, 4096))
            length = len(body).to_bytes(protocol.HEADER_BYTES, "big")
            connection.sendall((HELLO, b"")[number % 2] + (length, b"")[number % 3 == 0] + body)
    return since


@row("a message of 1 GB is announced, and begins")
def huge_message(scene: Scene) -> float:
    since = time.monotonic()
    with scene.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall((1 << 30).to_bytes(protocol.HEADER_BYTES, "big") + bytes(1 << 20))
        while connection.recv(1 << 16):
            pass
    return since


@row(f"a user opens {MANY:,} connections, twice as many as one may have", is_quick=False)
def many_connections(scene: Scene) -> float:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + OURS:
        pytest.skip(f"a process may have only {hard:,} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (MANY + OURS, hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(MANY):
            opened.enter_context(scene.connect())
        since = time.monotonic()
        scene.await_turn()
    return since


@row("a client never reads what it asks for")
def deaf_client(scene: Scene) -> float:
    since = time.monotonic()
    with scene.connect() as connection:
        connection.sendall(HELLO)
        connection.settimeout(DEAF_SECONDS)
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(protocol.encode(Look()))
    return since


@row("a client opens and closes sessions in a loop, 300 times", is_quick=False)
def opens_and_closes(scene: Scene) -> float:
    demand = Demand(1000, 1000, measured=True)
    since, turn = time.monotonic(), scene.take_turn_aside()
    for number in range(300):
        with Client.connect(scene.settings, "loop") as client:
            client.send(Open(f"loop{number % 7}", "loop", device="host", demand=demand))
            client.send(Request(1))
    turn.join()
    return since


@row("the broker has no descriptor left, and has some again", is_quick=False)
def no_descriptors(scene: Scene) -> float:
    """A session that opens meanwhile is served afterwards."""
    pid = scene.broker_pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds() + 3, hard))
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(scene.connect())
        scene.await_turn()
        late = scene.party(LATE)
    since, turn = time.monotonic(), scene.take_turn_aside()
    late.hear_until("served")
    turn.join()
    return since


LATE = """
import jupyter_gpushare as gpushare
with gpushare.session(name="late", device="host") as session:
    session.enter(); session.boundary()
print("served", flush=True)
"""


@row("the socket's file is removed", OF_A_BROKER)
def socket_removed(scene: Scene) -> float:
    Path(scene.settings.socket).unlink()
    since = time.monotonic()
    scene.look()
    return since


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
        scene.await_turn()  # who is connected needs no directory
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GpuShareError, match="Permission denied"):
            scene.look()
    finally:
        directory.chmod(0o700)
    return time.monotonic()
