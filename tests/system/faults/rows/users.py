"""Rows: users try to take resources of others, and make false claims."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import Open

from ..matrix import OF_A_BROKER, row
from ..scene import Scene
from .brokers import kill, without_a_new_broker
from .kernels import MEMBER

# Another user may not read our Python, so it imports first.
CROWD = """
import psutil, resource, select, time
from jupyter_gpushare import settings
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import Finish, Grant, Open, Request
os.setgroups([]); os.setgid(65534); os.setuid(65534)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
poll, clients = select.poll(), {}
for number in range(990):
    client = Client.connect(settings.load(), "crowd")
    demand = Demand(1 << 16, 1 << 20, measured=True)
    client.ask(Open(f"crowd{number}", f"crowd{number}", device="host", demand=demand))
    client.send(Request(1))
    clients[client.fileno()] = client
    poll.register(client.fileno(), select.POLLIN)
print("waits", flush=True)
while True:
    for client in [clients[descriptor] for descriptor, _ in poll.poll()]:
        while client.has_news():
            if isinstance(message := client.receive(), Grant):
                client.send(Finish(message.turn), Request(message.turn + 1))
"""
SILENT = """
import socket
from jupyter_gpushare import settings
reading, writing = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        os.close(writing)
        connections = [socket.socket(socket.AF_UNIX) for _ in range(60)]
        for connection in connections:
            connection.connect(settings.load().socket)
        os.write(1, b"is silent\\n")
        os.read(reading, 1)  # until the parent has ended
        os._exit(0)
sys.stdin.readline()
"""


@row("990 sessions of another user take turns of no length", is_quick=False)
def crowd_of_a_user(scene: Scene) -> float:
    if os.getuid() != 0:
        pytest.skip("only root can act as several users, as a hub does")
    os.chmod(Path(scene.settings.socket).parent, 0o711)
    os.chmod(scene.settings.socket, 0o666)
    crowd = scene.party(CROWD)
    crowd.hear_until("waits")
    since = scene.await_turn()
    crowd.kill()
    os.chmod(scene.settings.socket, 0o600)
    return since


@row("20 forks of a process keep 60 silent connections each", is_quick=False)
def silent_forks(scene: Scene) -> float:
    """A session of the same Unix user opens meanwhile, and gets its turn."""
    silent = scene.party(SILENT)
    for _ in range(20):
        silent.hear_until("is silent")
    since = time.monotonic()
    member = scene.party(MEMBER.replace("NAME", "member"))
    member.hear_until("had a turn")
    scene.had_turn()
    member.kill()
    silent.kill()
    return since


@row("a session claims a turn and a million seconds, of a broker that was killed", OF_A_BROKER)
def claims_of_the_past(scene: Scene) -> None:
    demand = Demand(1 << 20, 1 << 20, measured=True)
    claim = Open("liar", "liar", "host", demand=demand, turn=7, holding=True, device_seconds=1e6)
    pid = scene.broker_pid
    with without_a_new_broker(scene):
        kill(pid)
    with Client.connect(scene.settings, "tests") as client:
        client.ask(claim)
        scene.await_turn()
        view = scene.session("liar")
        assert view is not None
        assert view.device_seconds < 1
        assert view.state not in ("running", "overdue")
