"""Rows: what happens to the broker, in each of its states, and who comes after it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from jupyter_gpushare.broker.start import try_connect

from ..session.test_upgrade import BROKER, NEWER
from .kernels import HOLDER, ITERATING, WAITER, holder, paged
from .matrix import OF_A_BROKER, row
from .scene import Party, Scene, comes


def kill(pid: int) -> float:
    """The moment at which it was killed."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@contextlib.contextmanager
def nobody_starts_one(scene: Scene) -> Iterator[None]:
    """No client does: one of them may, who has this lock."""
    with open(Path(scene.settings.socket).with_suffix(".start"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def follow(scene: Scene, program: str) -> float:
    """The broker ends, as for an upgrade, and one with this program comes. When it answered."""
    before = scene.broker_pid
    with nobody_starts_one(scene):
        os.kill(before, signal.SIGTERM)
        assert comes(lambda: not psutil.pid_exists(before))
        scene.start(sys.executable, "-c", program)
        assert comes(lambda: answers(scene))
        return time.monotonic()


def answers(scene: Scene) -> bool:
    connection = try_connect(Path(scene.settings.socket))
    if connection is not None:
        connection.close()
    return connection is not None


@row("the broker is killed while nobody has a turn or wants one", OF_A_BROKER, is_quick=False)
def killed_idle(scene: Scene) -> float:
    with scene.nobody_computes():
        since = kill(scene.broker_pid)
        scene.await_turn()
    return since


@row("the broker is killed while the neighbour computes", OF_A_BROKER)
def killed(scene: Scene) -> float:
    return kill(scene.broker_pid)


@row("the broker is killed while a session has the turn, and keeps it", OF_A_BROKER, is_quick=False)
def killed_of_a_holder(scene: Scene) -> float:
    """It is the same session's turn at the next broker."""
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
    """For longer than the next broker waits for it. Then it goes on, in memory of its own."""
    victim = holder(scene, ITERATING)
    victim.signal(signal.SIGSTOP)
    since = kill(scene.broker_pid)
    scene.await_turn()
    assert scene.session("victim") is None
    victim.signal(signal.SIGCONT)
    assert comes(lambda: scene.session("victim") is not None)
    victim.kill()
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
    pid = scene.broker_pid
    victim = paged(scene)
    victim.hear_until("page_out")
    since = kill(pid)
    victim.hear_until("page_out ended")
    scene.await_turn()
    return came_back(scene, victim, since)


@row("the broker is killed when it has asked a session to page in", OF_A_BROKER, is_quick=False)
def killed_while_paging_in(scene: Scene) -> float:
    victim = paged(scene)
    victim.hear_until("page_out ended")
    scene.await_state("victim", "paged_out")
    pid = scene.broker_pid
    victim.say("a cell")
    victim.hear_until("page_in")
    since = kill(pid)
    scene.await_turn()
    victim.hear_until("whole")
    victim.kill()
    return since


def came_back(scene: Scene, victim: Party, since: float) -> float:
    """Nothing of what it had paged out is lost."""
    victim.say("a cell")
    victim.hear_until("whole")
    victim.kill()
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
    """Three of them end, and so does a client's own."""
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
    turn = scene.take_turn_aside()
    scene.await_state("ours", "waiting")
    has_turn.say()
    turn.join()
    return since


@row(
    "the broker is ended for an upgrade, and the next one killed as soon as it answers",
    OF_A_BROKER,
    is_quick=False,
)
def killed_while_taking_over(scene: Scene) -> float:
    """It waits then for those who had turns."""
    turn = scene.take_turn_aside()
    follow(scene, BROKER)
    since = kill(scene.broker_pid)
    turn.join()
    scene.await_turn()
    return since


@row("a broker of a newer protocol comes, and one of ours comes back", OF_A_BROKER, is_quick=False)
def newer_protocol(scene: Scene) -> float:
    """Who has the turn then computes on; who waits is told."""
    has_turn = scene.party(HOLDER.replace("sys.stdin.readline()", ITERATE))
    has_turn.hear_until("holds")
    follow(scene, NEWER + BROKER)
    has_turn.say()
    has_turn.hear_until("100 iterations")
    turn = scene.take_turn_aside()
    assert comes(lambda: "speaks protocol" in scene.told)
    with nobody_starts_one(scene):
        os.kill(newest(scene), signal.SIGTERM)
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


def newest(scene: Scene) -> int:
    """The process of a broker that does not talk with us, by the word of its lock."""
    return int(Path(scene.settings.socket).with_suffix(".lock").read_text())
