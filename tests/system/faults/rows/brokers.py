"""Rows: events at the broker in each of its states, and at the brokers after it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from jupyter_gpushare.wire import framing, messages
from jupyter_gpushare.wire.launch import log_path
from jupyter_gpushare.wire.messages import Hello

from ....polling import comes
from ....unit.session.test_upgrade import BROKER, NEWER
from ..matrix import OF_A_BROKER, row, rows
from ..scene import Scene, listens, trainer
from .kernels import AWAIT, HOLDER, ITERATING, MEMBER, WAITER, holder, paged, pages_in, pages_out

STRIKES = 5


def kill(pid: int) -> float:
    """Kill a process; return the moment of the kill."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@contextlib.contextmanager
def without_a_new_broker(scene: Scene) -> Iterator[None]:
    """Keep clients from starting a broker within the block: the test has the lock that they
    need."""
    with open(Path(scene.settings.socket).with_suffix(".start"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def without_any(scene: Scene) -> Iterator[None]:
    """Kill the broker, and let no other one start within the block."""
    pid = scene.broker_pid
    with without_a_new_broker(scene):
        kill(pid)
        assert comes(lambda: not psutil.pid_exists(pid))
        yield


def follow(scene: Scene, program: str) -> float:
    """End the broker, as for an upgrade, and start one with this program. Return when the new one
    answered."""
    before = scene.broker_pid
    with without_a_new_broker(scene):
        os.kill(before, signal.SIGTERM)
        assert comes(lambda: not psutil.pid_exists(before))
        scene.start(sys.executable, "-c", program)
        assert comes(lambda: listens(scene.settings))
        return time.monotonic()


@row("the broker is killed while its log cannot be opened, for a second", OF_A_BROKER)
def killed_without_log(scene: Scene) -> float:
    """No process can start a broker meanwhile, but all keep trying."""
    log = log_path(Path(scene.settings.socket))
    log.unlink(missing_ok=True)
    log.mkdir()
    kill(scene.broker_pid)
    turn = scene.take_turn_aside()
    assert comes(lambda: "Is a directory" in scene.told)
    log.rmdir()
    since = time.monotonic()
    turn.join()
    return since


@row("the broker is killed while no session has a turn or wants one", OF_A_BROKER, is_quick=False)
def killed_idle(scene: Scene) -> float:
    with scene.without_iterations():
        since = kill(scene.broker_pid)
        scene.await_turn()
    return since


@row("the broker is killed while the neighbour computes", OF_A_BROKER)
def killed(scene: Scene) -> float:
    return kill(scene.broker_pid)


@row("the broker is killed while a session has the turn, and keeps it", OF_A_BROKER, is_quick=False)
def killed_of_a_holder(scene: Scene) -> float:
    """The turn is the same session's at the next broker."""
    has_turn = holder(scene)
    before = scene.broker_pid
    since, turn = kill(before), scene.take_turn_aside()
    assert comes(lambda: scene.broker_pid != before)
    scene.await_state("victim", "running")
    scene.await_state("ours", "waiting")
    has_turn.say()
    turn.join()
    return since


@row("the broker is killed while a kernel is stopped that has the turn, for longer", OF_A_BROKER)
def killed_of_a_stopped_holder(scene: Scene) -> float:
    """The kernel is stopped for longer than the next broker waits for it. Then it continues, in
    memory of its own."""
    victim = holder(scene, ITERATING)
    victim.signal(signal.SIGSTOP)
    since = kill(scene.broker_pid)
    scene.await_turn()
    assert scene.session("victim") is None
    victim.signal(signal.SIGCONT)
    assert comes(lambda: scene.session("victim") is not None)
    return since


@row("the broker is killed while a session waits for its turn", OF_A_BROKER, is_quick=False)
def killed_of_a_waiter(scene: Scene) -> float:
    pid = scene.broker_pid
    os.kill(pid, signal.SIGSTOP)  # so that our request is in its socket
    waits = scene.take_turn_aside()
    since = kill(pid)
    waits.join()
    return since


@row("the broker is killed while two wait, one of whom is killed too", OF_A_BROKER, is_quick=False)
def killed_with_a_waiter(scene: Scene) -> float:
    has_turn = holder(scene)
    waiter = scene.party(WAITER)
    scene.await_state("waiter", "waiting")
    turn = scene.take_turn_aside()
    scene.await_state("ours", "waiting")
    since = kill(scene.broker_pid)
    waiter.kill()
    has_turn.say()
    turn.join()
    return since


@row("the broker is killed when it has asked a session to page out", OF_A_BROKER, is_quick=False)
def killed_while_paging_out(scene: Scene) -> float:
    pid, victim = scene.broker_pid, paged(scene)
    pages_out(scene, victim)
    since = kill(pid)
    victim.hear_until("page_out ended")
    scene.await_turn()
    victim.say("a cell")
    victim.hear_until("whole")  # nothing of what it had paged out is lost
    return since


@row("the broker is killed when it has asked a session to page in", OF_A_BROKER, is_quick=False)
def killed_while_paging_in(scene: Scene) -> float:
    pid, victim = scene.broker_pid, paged(scene)
    pages_in(scene, victim)
    since = kill(pid)
    scene.await_turn()
    victim.hear_until("whole")
    return since


@row("the broker is stopped, and goes on after a second", is_quick=False)
def stopped(scene: Scene) -> float:
    pid = scene.broker_pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(pid, signal.SIGCONT)
    return time.monotonic()


@row("the broker is killed, and four start at once", OF_A_BROKER, is_quick=False)
def several(scene: Scene) -> float:
    """Three of the four brokers end, and so does a broker that a client starts."""
    pid = scene.broker_pid
    since, turn = kill(pid), scene.take_turn_aside()
    brokers = [scene.start(sys.executable, "-m", "jupyter_gpushare.broker") for _ in range(4)]
    turn.join()
    assert comes(lambda: sum(broker.poll() is None for broker in brokers) <= 1)
    return since


@row("the broker is ended for an upgrade while a session has the turn", OF_A_BROKER, is_quick=False)
def upgraded(scene: Scene) -> float:
    has_turn = holder(scene)
    since = follow(scene, BROKER)
    scene.await_state("victim", "running")
    with scene.turn_meanwhile():
        scene.await_state("ours", "waiting")
        has_turn.say()
    return since


@row(
    "the broker is ended for an upgrade, and the next one killed as soon as it answers",
    OF_A_BROKER,
    is_quick=False,
)
def killed_while_taking_over(scene: Scene) -> float:
    """The third broker waits for the sessions that had turns."""
    with scene.turn_meanwhile():
        follow(scene, BROKER)
        since = kill(scene.broker_pid)
    scene.await_turn()
    return since


@row("a broker of a newer protocol comes, and one of ours comes back", OF_A_BROKER, is_quick=False)
def newer_protocol(scene: Scene) -> float:
    """The holder computes meanwhile; a waiting session is told the reason."""
    has_turn = scene.party(HOLDER.replace(AWAIT, ITERATE))
    has_turn.hear_until("holds")
    follow(scene, NEWER + BROKER)
    has_turn.say()
    has_turn.hear_until("100 iterations")
    turn = scene.take_turn_aside()
    assert comes(lambda: "speaks protocol" in scene.told)
    with without_a_new_broker(scene):
        lock = Path(scene.settings.socket).with_suffix(".lock")
        os.kill(int(lock.read_text()), signal.SIGTERM)  # it does not talk with us
        scene.start(sys.executable, "-c", BROKER)
    assert comes(lambda: scene.session("victim") is not None)
    since = time.monotonic()
    has_turn.say()
    turn.join()
    return since


ITERATE = """sys.stdin.readline()
    for _ in range(100):
        session.enter(); session.boundary()
    assert session.holding
    print("100 iterations", flush=True)
    sys.stdin.readline()"""


def strikes(scene: Scene, how: signal.Signals) -> float:
    victim = scene.party(trainer("victim"))
    for _ in range(STRIKES):
        os.kill(scene.broker_pid, how)
        since = scene.await_turn()
    assert scene.is_right(victim)
    return since


rows(
    strikes,
    OF_A_BROKER,
    ended_five_times=("the broker is ended in good order, five times in a row", signal.SIGTERM),
    killed_five_times=(
        "the broker is killed five times in a row, as soon as ours has had a turn",
        signal.SIGKILL,
    ),
)


@row("a kernel that has the turn is killed, and the broker at once", OF_A_BROKER, is_quick=False)
def killed_with_holder(scene: Scene) -> float:
    pid, victim = scene.broker_pid, holder(scene)
    victim.kill()
    return kill(pid)


@row("the broker is killed, with half a message on each of 50 connections", OF_A_BROKER)
def killed_with_halves(scene: Scene) -> float:
    pid, hello = scene.broker_pid, framing.encode(Hello(messages.PROTOCOL))
    with contextlib.ExitStack() as opened:
        for number in range(50):
            opened.enter_context(connection := scene.connect())
            connection.sendall(hello[: number % len(hello)])
        return kill(pid)


def garbage_in(scene: Scene, suffix: str) -> float:
    with without_any(scene):
        garbage = random.Random(7).randbytes(1 << 16)
        Path(scene.settings.socket).with_suffix(suffix).write_bytes(garbage)
        return time.monotonic()


rows(
    garbage_in,
    OF_A_BROKER,
    garbage_in_lock=("the broker is killed, and its lock is full of garbage", ".lock"),
    garbage_in_list_of_turns=(
        "the broker is killed, and its list of turns is full of garbage",
        ".turns",
    ),
    garbage_in_live_changes=(
        "the broker is killed, and its list of live changes is full of garbage",
        ".changes",
    ),
)


@row("the broker is killed while its accounts are garbage", OF_A_BROKER, is_quick=False)
def garbage_in_accounts(scene: Scene) -> float:
    """The broker says so, and grants turns. After the files are removed, the next broker keeps
    accounts again."""
    with without_any(scene):
        files = [*Path(scene.settings.accounts).parent.glob("accounts.sqlite*")]
        for file in files:
            file.write_bytes(b"garbage" * 1000)
    scene.await_turn()
    assert scene.look().broker.accounts
    with without_a_new_broker(scene):
        for file in files:
            file.unlink(missing_ok=True)
        since = kill(scene.broker_pid)
    scene.await_turn()
    assert not scene.look().broker.accounts
    return since


@row("another process locks the database of the accounts for two seconds", is_quick=False)
def locked_accounts(scene: Scene) -> float:
    with contextlib.closing(sqlite3.connect(scene.settings.accounts)) as database:
        database.execute("BEGIN EXCLUSIVE")
        return takes_turns(scene, 2.0)


@row("the database of the accounts is cut to nothing while the broker writes it", is_quick=False)
def truncated_accounts(scene: Scene) -> float:
    Path(scene.settings.accounts).write_bytes(b"")
    return takes_turns(scene, 2.0)


def takes_turns(scene: Scene, seconds: float) -> float:
    """Let our session take turns for this time; return when it requested the last one."""
    end = time.monotonic() + seconds
    while (since := time.monotonic()) < end:
        scene.await_turn()
    return since


@row(
    "a directory lies in the place of the socket while the broker is killed",
    OF_A_BROKER,
    is_quick=False,
)
def directory_for_socket(scene: Scene) -> float:
    """No process can start a broker meanwhile, but all keep trying."""
    path = Path(scene.settings.socket)
    with without_any(scene):
        path.unlink()
        path.mkdir()
    turn = scene.take_turn_aside()
    assert comes(lambda: bool(scene.told))
    path.rmdir()
    since = time.monotonic()
    turn.join()
    return since


@row("the broker is stopped, its directory is removed, another comes, and it goes on", OF_A_BROKER)
def stopped_and_replaced(scene: Scene) -> float:
    """It ends then."""
    before = scene.broker_pid
    os.kill(before, signal.SIGSTOP)
    shutil.rmtree(Path(scene.settings.socket).parent)
    since = time.monotonic()
    assert scene.broker_pid != before
    os.kill(before, signal.SIGCONT)
    assert comes(lambda: not psutil.pid_exists(before))
    return since


@row(
    "the broker is killed, and 20 kernels open their sessions at once",
    2 * OF_A_BROKER,
    is_quick=False,
)
def many_open_at_once(scene: Scene) -> float:
    """All sessions find the same broker afterwards."""
    pid = scene.broker_pid
    with without_a_new_broker(scene):
        kill(pid)
        crowd = [scene.party(MEMBER.replace("NAME", f"member{each}")) for each in range(20)]
        since = time.monotonic()
    for member in crowd:
        member.hear_until("had a turn")
    names = {view.name for view in scene.look().devices[0].sessions}
    assert names >= {f"member{each}" for each in range(20)}
    for member in crowd:
        member.kill()
    return since
