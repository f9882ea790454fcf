"""What the broker knows of the process at the other end of a connection."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.accounting.accounts import Accounts
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection, computes
from jupyter_gpushare.broker.transport.server import Endpoint
from jupyter_gpushare.broker.transport.socket_file import SocketFile, listen
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load

from ..polling import TIMEOUT_SECONDS

PROCESSES = 300


ALLOCATIONS = 10  # that a close makes at least


def test_a_connection_ends_although_there_was_no_memory_to_close_it() -> None:
    """Or its descriptor would stay as long as the broker. Python makes do without the memory of
    some allocations, and of which ones depends on what ran before."""
    nomemory = pytest.importorskip("_testcapi")

    async def end_of_other_side(failing: int) -> tuple[bytes, bool]:
        device = Device("host", 1 << 30, "main memory", partial(HostLaneMemory, 1 << 30))
        service = Service(load({}), [device], started=0.0, accounts=Accounts())
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


def test_a_broker_without_memory_ends(tmp_path: Path) -> None:
    """A decision may have been lost, such as a request to yield, which is made once."""
    path = tmp_path / "broker.sock"

    def fails() -> None:
        raise MemoryError

    async def serve() -> None:
        device = Device("host", 1 << 30, "main memory", partial(HostLaneMemory, 1 << 30))
        service = Service(load({}), [device], started=0.0, accounts=Accounts())
        endpoint = Endpoint(load({}), service)
        listener = listen(path, load({}))
        asyncio.get_running_loop().call_later(0.1, fails)
        await asyncio.wait_for(endpoint.serve(listener, SocketFile(path)), TIMEOUT_SECONDS)

    asyncio.run(serve())


def test_a_process_computes_until_it_ends_and_may_end_while_it_is_looked_at() -> None:
    assert computes(os.getpid())
    with ThreadPoolExecutor(1) as pool:
        for _ in range(PROCESSES):
            pid = os.posix_spawn("/bin/true", ["true"], {})
            reaped = pool.submit(os.waitpid, pid, 0)
            while not reaped.done():
                computes(pid)
            assert not computes(pid)


# As a user that may not see the processes of others: prints what it says of each process that it
# is told.
SHORT_SIGHTED = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
from jupyter_gpushare import settings
from jupyter_gpushare.tools import doctor
from jupyter_gpushare.broker.transport.connection import computes
print("ready", flush=True)
warnings = [check for check in doctor._proc(settings.load())]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for line in sys.stdin:
    print(os.path.exists(f"/proc/{int(line)}"), computes(int(line)), flush=True)
print(*(f"{check.state}: {check.sentence}" for check in warnings))
"""


@pytest.fixture
def short_sighted() -> Iterator[subprocess.Popen[str]]:
    """Start a process to which /proc is as with hidepid=2."""
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
