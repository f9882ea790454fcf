"""The broker's knowledge of the process at the other end of a connection."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.accounting.accounts import AccountBook
from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection, computes
from jupyter_gpushare.broker.transport.server import STUCK_SECONDS, Endpoint
from jupyter_gpushare.broker.transport.socket_file import SocketFile, listen
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.framing import ToBroker, encode

from ....polling import TIMEOUT_SECONDS

HOST = Device("host", 1 << 30, "main memory", partial(HostLaneMemory, 1 << 30))
PROCESSES = 300
ALLOCATIONS = 10  # that a close makes at least


@pytest.mark.system
def test_a_connection_ends_although_there_was_no_memory_to_close_it() -> None:
    """Otherwise its descriptor would stay open as long as the broker lives. Python survives some
    failed allocations; which ones depends on earlier code."""
    nomemory = pytest.importorskip("_testcapi")

    async def end_of_other_side(failing: int) -> tuple[bytes, bool]:
        service = Service(load({}), [HOST], started=0.0, accounts=AccountBook())
        endpoint = Endpoint(load({}), service)
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, connection = await loop.connect_accepted_socket(lambda: Connection(endpoint), theirs)
            nomemory.set_nomemory(failing, failing + 1)
            has_failed = False
            try:
                connection.close()
            except MemoryError:
                has_failed = True
            finally:
                nomemory.remove_mem_hooks()
            last = await asyncio.wait_for(loop.sock_recv(ours, 1), TIMEOUT_SECONDS)
            return last, has_failed

    outcomes = [asyncio.run(end_of_other_side(failing)) for failing in range(ALLOCATIONS)]
    assert [last for last, _ in outcomes] == [b""] * ALLOCATIONS
    assert any(has_failed for _, has_failed in outcomes)


class WithoutMemory(Service):
    """A service that fails for lack of memory when it handles the end of a turn."""

    def handle(self, peer: Peer, message: ToBroker, now: float) -> None:
        super().handle(peer, message, now)
        if isinstance(message, m.Finish):
            raise MemoryError


def a_call_fails(client: socket.socket, path: Path) -> None:
    """Let a call of the event loop itself fail."""
    raise MemoryError


def a_message_fails(client: socket.socket, path: Path) -> None:
    """Send a message whose handling fails; the connection stays open."""
    client.connect(str(path))
    said = (m.Hello(m.PROTOCOL), m.Open(id="a", name="a", device="host"), m.Request(1), m.Finish(1))
    client.sendall(b"".join(map(encode, said)))


@pytest.mark.parametrize("fail", [a_call_fails, a_message_fails])
def test_a_broker_without_memory_ends(
    tmp_path: Path, fail: Callable[[socket.socket, Path], None]
) -> None:
    """A decision may be lost, such as a grant or a preemption request, which is sent once. The next
    broker asks the sessions for their turns."""
    path = tmp_path / "broker.sock"

    async def serve(client: socket.socket) -> None:
        service = WithoutMemory(load({}), [HOST], started=0.0, accounts=AccountBook())
        endpoint = Endpoint(load({}), service)
        listener = listen(path, load({}))
        asyncio.get_running_loop().call_later(0.1, fail, client, path)
        await asyncio.wait_for(endpoint.serve(listener, SocketFile(path)), TIMEOUT_SECONDS)

    with socket.socket(socket.AF_UNIX) as client:
        asyncio.run(serve(client))


# A broker that stays in one place forever.
STUCK = """
import asyncio
import jupyter_gpushare.broker.transport.server as server
from jupyter_gpushare.broker.__main__ import main
def stays(*_):
    while True:
        pass
def fails():
    asyncio.get_running_loop().call_later(0.1, fails)
    raise MemoryError
class Endpoint(server.Endpoint):
    async def serve(self, listener, file):
        self._loop.call_later(0.1, {call})
        return await super().serve(listener, file)
server.Endpoint = Endpoint
{change}
main()
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("call", "change", "number"),
    [
        ("stays", "", signal.SIGPROF),
        ("fails", "server.Service.end = stays", signal.SIGALRM),
        ("fails", "server.asyncio.Event.set = lambda event: None", signal.SIGALRM),
    ],
    ids=["in_its_loop", "in_its_end", "asleep"],
)
def test_a_broker_that_stays_in_one_place_for_ever_is_ended(
    settings: Settings, call: str, change: str, number: signal.Signals
) -> None:
    """A hanging broker has the lock of its socket, so no other one could start. A broker without
    memory may lose the call that would wake it."""
    program = STUCK.format(call=call, change=change)
    process = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_SECONDS)
    assert process.returncode == -number
    with Client.connect(settings, "tests") as client:  # the next one is there at once
        assert client.look().broker.pid == client.welcome.pid


@pytest.mark.system
def test_a_broker_that_sleeps_stays(settings: Settings) -> None:
    """Only time in which it computes counts."""
    with Client.connect(settings, "tests") as client:
        os.kill(client.welcome.pid, signal.SIGSTOP)
        time.sleep(STUCK_SECONDS + 1)
        os.kill(client.welcome.pid, signal.SIGCONT)
        assert client.look().broker.pid == client.welcome.pid


@pytest.mark.system
def test_a_process_computes_until_it_ends_and_may_end_while_it_is_looked_at() -> None:
    assert computes(os.getpid())
    with ThreadPoolExecutor(1) as pool:
        for _ in range(PROCESSES):
            pid = os.posix_spawn("/bin/true", ["true"], {})
            reaped = pool.submit(os.waitpid, pid, 0)
            while not reaped.done():
                computes(pid)
            assert not computes(pid)


# Runs as a user that may not see the processes of others, and prints what it says of each process
# that it is told.
SHORT_SIGHTED = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
from jupyter_gpushare import settings
from jupyter_gpushare.tools import doctor
from jupyter_gpushare.broker.transport.connection import computes
print("ready", flush=True)
warnings = [check for check in doctor._proc(doctor.Installation(settings.load()))]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for line in sys.stdin:
    print(os.path.exists(f"/proc/{int(line)}"), computes(int(line)), flush=True)
print(*(f"{check.state}: {check.sentence}" for check in warnings))
"""


@pytest.fixture
def short_sighted() -> Iterator[subprocess.Popen[str]]:
    """Start a process that sees /proc as with hidepid=2."""
    if os.getuid() != 0:
        pytest.skip("only root can mount /proc, and act as another user")
    command = ["unshare", "--mount", sys.executable, "-c", SHORT_SIGHTED]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        if process.stdout.readline() != "ready\n":
            pytest.skip("/proc cannot be mounted here")
        yield process
        process.stdin.close()


def test_an_invisible_process_lives_as_long_as_it_does(
    short_sighted: subprocess.Popen[str],
) -> None:
    assert short_sighted.stdin is not None
    assert short_sighted.stdout is not None
    with subprocess.Popen(["sleep", "60"]) as hidden:
        said = []
        for number in (0, signal.SIGKILL):
            hidden.send_signal(number)
            if number:
                hidden.wait()
            short_sighted.stdin.write(f"{hidden.pid}\n")
            short_sighted.stdin.flush()
            said.append(short_sighted.stdout.readline().split())
    assert said == [["False", "True"], ["False", "False"]]
    short_sighted.stdin.close()
    assert "warning: /proc hides processes" in short_sighted.stdout.read()
