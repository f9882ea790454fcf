"""Rows: two notebooks compute at once in one lane, and something happens to one of them."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator

import pytest

from jupyter_gpushare.settings import Settings

from ....co_lanes import EPHEMERAL, begun, capacity, end_of, is_inside
from ....polling import until
from ..matrix import LEASE_SECONDS, OF_A_BROKER, OF_A_HANG, row, rows
from ..scene import Party, Scene, trainer
from .brokers import kill


@pytest.fixture
def room(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    set_room(monkeypatch, 2)


@pytest.fixture
def room_of_three(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    set_room(monkeypatch, 3)


def set_room(monkeypatch: pytest.MonkeyPatch, trainings: int) -> None:
    """Set the capacity to room for this number of these notebooks, if two share a lane."""
    own = {"share_lanes": 1, "running_lanes": 2, "host_capacity_bytes": capacity(trainings)}
    for name, value in own.items():
        monkeypatch.setenv(f"JUPYTER_GPUSHARE_{name.upper()}", str(value))


@contextlib.contextmanager
def pair(scene: Scene, which: str = "elder", before: str = "") -> Iterator[Party]:
    """Let the victim compute beside the neighbour, both in an iteration. The victim's iteration
    began first, or later."""
    victim = scene.party(trainer("victim", before))
    with contextlib.closing(begun(scene.look)) as watch:
        scene.share_lane()
        end = end_of(victim.pid, scene.look())
        until(lambda: is_inside(watch.now(), end, which))
        yield victim
    assert not watch.above, "both had more than the lane"


def killed_in_its_iteration(scene: Scene, which: str, room: None) -> float:
    """This happens twice, since the end of the lane must be free again after the first time."""
    for _ in range(2):
        until(lambda: scene.session("victim") is None)  # the one before
        with pair(scene, which) as victim:
            since = victim.kill()
    return since


rows(
    killed_in_its_iteration,
    is_quick=True,
    elder_killed=(
        "of two notebooks in a lane one is killed in its iteration, which began first",
        "elder",
    ),
    younger_killed=(
        "of two notebooks in a lane one is killed in its iteration, which began later",
        "younger",
    ),
)


@row("of two notebooks in a lane one stands still in its iteration, and goes on", OF_A_HANG)
def stopped(scene: Scene, room: None) -> float:
    with pair(scene) as victim:
        victim.signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_SECONDS)
        since = victim.signal(signal.SIGCONT)
        scene.await_turn()
        assert scene.is_right(victim)
        return since


@row("of two notebooks in a lane one is killed that stands still in its iteration", is_quick=False)
def killed_while_stopped(scene: Scene, room: None) -> float:
    with pair(scene) as victim:
        victim.signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_SECONDS)
        return victim.kill()


FORKS = """
import os, select, signal
def fork(*_):
    if os.fork() == 0:
        end = select.poll()
        end.register(0, 0)  # it reads nothing, and is told when there is no more
        end.poll()
        os._exit(0)
signal.signal(signal.SIGUSR1, fork)
"""


@row("of two notebooks in a lane one is killed; a child lives on, forked in its iteration")
def forked(scene: Scene, room: None) -> float:
    with pair(scene, before=FORKS) as victim:
        victim.signal(signal.SIGUSR1)
        assert scene.is_right(victim)
        return victim.kill()


# Its next forward has an eighth more than it ever had.
GROWS = f"""
import signal, torch
more = []
def grow(*_):
    if grows:
        more.append(torch.empty({EPHEMERAL // 8}, dtype=torch.uint8).fill_(1))
def let_go(*_):
    if more:
        grows.clear()
        more.clear()
grows = []
signal.signal(signal.SIGUSR1, lambda *_: grows.append(True))
torch.nn.modules.module.register_module_forward_pre_hook(grow)
torch.nn.modules.module.register_module_forward_hook(let_go)
"""


@row("of two notebooks in a lane one needs more in some iterations than it ever did")
def needs_more_than_it_said(scene: Scene, room_of_three: None) -> float:
    with pair(scene, before=GROWS) as victim:
        for _ in range(5):
            victim.signal(signal.SIGUSR1)
            assert scene.is_right(victim)
        return victim.kill()


@row("the ledger of a lane is overwritten while two notebooks compute in it")
def noise_in_the_ledger(scene: Scene, room: None) -> float:
    victim = scene.party(trainer("victim"))
    noise = random.Random(1)
    with contextlib.closing(begun(scene.look)) as watch:
        for _ in range(20):
            watch.overwrite(noise.randbytes(8))
    assert scene.is_right(victim)
    scene.share_lane()
    return victim.kill()


@row("the broker is killed while two notebooks compute in one lane", OF_A_BROKER)
def broker_killed(scene: Scene, room: None) -> float:
    with pair(scene) as victim:
        since = kill(scene.broker_pid)
        scene.await_turn()
        assert scene.is_right(victim)
        assert not any(lane.width_bytes for lane in scene.look().devices[0].lanes)
        return since


@row("a third notebook needs room that two in one lane have")
def lane_shrinks(scene: Scene, room_of_three: None) -> float:
    with pair(scene) as victim:
        newcomer = scene.party(trainer("newcomer"))
        scene.await_state("newcomer", "waiting")
        since = time.monotonic()
        assert scene.is_right(newcomer)
        assert scene.is_right(victim)
        return since
