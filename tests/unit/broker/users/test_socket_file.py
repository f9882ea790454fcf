"""The lock beside the socket decides which of two brokers serves, and tells the next one about
sessions."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.broker.transport.socket_file import open_lock, own_socket
from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.handoff_slot import HandoffSlot
from jupyter_gpushare.wire.launch import log_path, try_connect
from jupyter_gpushare.wire.messages import Grant, Open, Request, SetPolicy

from ....conftest import wait_for_exit
from ....polling import next_of
from ..processes import as_user, open_files, run_broker

DEMAND = Demand(1000, 1000, measured=True)


@pytest.fixture
def lock(settings: Settings) -> Path:
    return Path(settings.socket).with_suffix(".lock")


@pytest.fixture
def second(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker that has started while another process has the lock and does not answer."""
    with open(lock, "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "jupyter_gpushare.broker"]
        with subprocess.Popen(command, cwd="/", stderr=subprocess.PIPE, text=True) as second:
            while str(lock) not in open_files(second.pid).values():
                assert second.poll() is None
            fcntl.flock(held, fcntl.LOCK_UN)
            yield second
            second.terminate()


def test_a_broker_waits_for_the_one_that_is_about_to_end(
    settings: Settings, second: subprocess.Popen[str]
) -> None:
    while (connection := try_connect(Path(settings.socket))) is None:
        assert second.poll() is None
    connection.close()
    with Client.connect(settings, start=False) as client:
        assert client.welcome.pid == second.pid


def test_a_broker_that_starts_after_a_removed_directory_knows_of_sessions_and_live_changes(
    settings: Settings, broker_pid: int, lock: Path
) -> None:
    client = Client.connect(settings)
    client.ask(Open(id="a", name="a", device="host", demand=DEMAND))
    client.ask(SetPolicy("las"))
    shutil.rmtree(lock.parent)
    wait_for_exit(broker_pid)
    assert lock.read_text() == f"{broker_pid}\n"
    assert "las" in lock.with_suffix(".changes").read_text()
    client.close()


def test_a_removed_directory_stays_away_where_there_were_no_sessions(
    settings: Settings, broker_pid: int, lock: Path
) -> None:
    shutil.rmtree(lock.parent)
    wait_for_exit(broker_pid)
    assert not lock.parent.exists()


def test_a_lock_of_garbage_stops_no_broker(settings: Settings, lock: Path) -> None:
    lock.write_bytes(b"\xff\x00\xfe" * 1000)
    with Client.connect(settings) as client:
        assert lock.read_text() == f"{client.welcome.pid}\n"


def test_a_broker_that_cannot_sign_the_lock_leaves_the_word_of_the_one_before(
    settings: Settings, lock: Path
) -> None:
    """So does one that is killed before it has signed."""

    def was_in_use() -> bool:
        with open_lock(lock) as taken:
            return own_socket(taken, Path(settings.socket))

    def cannot_write() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        return was_in_use()

    assert not was_in_use()
    assert "File too large" in as_user(0, cannot_write)
    assert was_in_use()
    assert lock.read_text() == f"{os.getpid()}\n"


def test_a_turn_in_the_journal_keeps_others_from_one_even_beside_an_empty_lock(
    settings: Settings, lock: Path
) -> None:
    with contextlib.closing(HandoffSlot()) as slot, Client.connect(settings) as holder:
        key = slot.new_key()
        holder.ask(Open("a", "a", "host", demand=DEMAND, handoff_slot=slot.name, key=key))
        holder.send(Request(1))
        next_of(holder, Grant)
        os.kill(killed := holder.welcome.pid, signal.SIGKILL)
        wait_for_exit(killed)
        lock.write_text("")
        with Client.connect(settings) as other:
            other.ask(Open("b", "b", "host", demand=DEMAND))
            other.send(Request(1))
            (view,) = other.look().devices[0].sessions
            assert (view.id, view.state) == ("b", "waiting")


STARTER = """
import sys, time
from pathlib import Path
from jupyter_gpushare.wire.launch import StartLock
with StartLock(Path(sys.argv[1]), 1.0).tried() as is_chosen:
    print(is_chosen, flush=True)
    time.sleep(3600)
"""


@pytest.mark.system
def test_a_client_that_is_stopped_while_it_starts_a_broker_keeps_no_other_from_one(
    settings: Settings,
) -> None:
    command = [sys.executable, "-c", STARTER, settings.socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout
            assert starter.stdout.readline() == "True\n"
            starter.send_signal(signal.SIGSTOP)
            short = msgspec.structs.replace(settings, start_seconds=10.0)
            with Client.connect(short) as first, Client.connect(short) as second:
                assert first.welcome.pid == second.welcome.pid
        finally:
            starter.kill()


START = """
import os, signal, sys, time
if "jupyter_gpushare.broker" in sys.orig_argv:
    with open(os.environ["STARTS"], "a") as starts:
        is_first = starts.tell() == 0
        print(os.getpid(), file=starts)
"""
SLOW_START = START + "    time.sleep(5)"
STOPPED_START = START + "    if is_first: os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def starts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The file with the process ids of the started brokers."""
    (tmp_path / "sitecustomize.py").write_text(request.param)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("STARTS", str(starts := tmp_path / "starts"))
    yield starts
    for pid in map(int, starts.read_text().split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.system
@pytest.mark.parametrize("starts", [SLOW_START], indirect=True)
def test_a_broker_that_is_slow_to_start_is_started_once(settings: Settings, starts: Path) -> None:
    with Client.connect(settings) as client:
        assert starts.read_text() == f"{client.welcome.pid}\n"


@pytest.mark.system
@pytest.mark.parametrize("starts", [STOPPED_START], indirect=True)
def test_another_broker_is_started_for_one_that_is_stopped(
    settings: Settings, starts: Path
) -> None:
    short = msgspec.structs.replace(settings, start_seconds=20.0)
    with Client.connect(short) as client:
        assert starts.read_text().split()[1:] == [str(client.welcome.pid)]


def test_a_directory_in_the_place_of_the_socket_is_reported(settings: Settings) -> None:
    path = Path(settings.socket)
    path.mkdir()
    done = run_broker()
    assert done.returncode == 1
    assert f"{path} lies in the place of the broker's socket" in done.stderr
    assert done.stderr.count("\n") == 1
    with pytest.raises(BrokerUnavailable, match="lies in the place of the broker's socket"):
        Client.connect(settings)
    assert not log_path(path).exists()  # no broker was started, and waited for
    path.rmdir()
    with Client.connect(settings) as client:
        assert client.look()
