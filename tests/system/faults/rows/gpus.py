"""Rows: events at a GPU and its driver. Both are the stand-ins in tests/stand_ins/driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.settings import Settings

from ....conftest import FakeGpus
from ....makers import maker
from ....polling import comes, until
from ...whole.lanes.test_cuda_lanes import CHUNK, Notebook, chunks_of, train_together
from ..matrix import OF_A_BROKER, row
from ..scene import Scene
from .brokers import kill

CAPACITY = 32 * CHUNK
CARD = f"gpu GPU-a {CAPACITY} 0 NVIDIA H200"
STRANGER = os.getppid()  # a process without sharing
GPU_IS_LOST = 15  # of nvml.h
Trainings = Callable[[str], Notebook]

# One iteration in which the nth call of the driver fails; returns whether there were that many.
FAILS = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
fail, has_failed = driver._ZN11fake_driver4failEmi, driver._ZN11fake_driver10has_failedEv
fail.argtypes, has_failed.restype = (ctypes.c_size_t, ctypes.c_int), ctypes.c_bool
def iterate_with_failure(nth):
    fail(nth, 999)  # CUDA_ERROR_UNKNOWN
    try:
        iterate(1)
    except (AssertionError, RuntimeError, MemoryError):
        lane.leave()
    session.leave()
    failed = has_failed()
    fail(0, 0)
    return failed
"""


@pytest.fixture
def gpu(gpus: FakeGpus, settings: Settings) -> FakeGpus:
    gpus.say(CARD)
    return gpus


@pytest.fixture
def trainings(gpu: FakeGpus) -> Iterator[Trainings]:
    """Processes that train on the GPU, with chunks of one lane."""
    with maker(Notebook, Notebook.close) as trainings:
        yield trainings


def both(trainings: Trainings) -> tuple[Notebook, Notebook]:
    ada, bob = trainings("ada"), trainings("bob")
    train_together(ada, bob)
    return ada, bob


def are_well_and_leave(*notebooks: Notebook) -> None:
    train_together(*notebooks)
    for each in notebooks:
        each.is_well()
        each.close()


@row("a notebook that has a GPU's turn is killed", is_quick=False)
def killed_on_gpu(scene: Scene, trainings: Trainings) -> float:
    ada, bob = both(trainings)
    ada.runs("session.enter()")
    bob.say("iterate(1); session.leave()")
    scene.await_state("bob", "waiting")
    since = time.monotonic()
    ada.kill()
    bob.end()
    scene.had_turn()
    are_well_and_leave(bob)
    return since


@row("the broker is killed while two train on a GPU", OF_A_BROKER, is_quick=False)
def killed_broker_of_gpu(scene: Scene, trainings: Trainings) -> float:
    ada, bob = both(trainings)
    ada.say("iterate(100); session.leave()")
    bob.say("iterate(100); session.leave()")
    since, turn = kill(scene.broker_pid), scene.take_turn_aside()
    ada.end()
    bob.end()
    turn.join()
    are_well_and_leave(ada, bob)
    return since


@row("a GPU vanishes from the driver, and comes back", is_quick=False)
def vanished(scene: Scene, trainings: Trainings, gpu: FakeGpus) -> float:
    """Open sessions continue; a broker that starts meanwhile does not have the device."""
    ada, bob = both(trainings)
    gpu.say(f"fail nvmlDeviceGetHandleByUUID {GPU_IS_LOST}", CARD)
    since = scene.await_turn()
    train_together(ada, bob)
    gpu.say(CARD)
    are_well_and_leave(ada, bob)
    return since


@row("an unmanaged process takes all memory of a GPU, and gives it back", is_quick=False)
def unmanaged_process(scene: Scene, trainings: Trainings, gpu: FakeGpus) -> float:
    """An admitted session stays; a newcomer waits."""
    ada, bob = both(trainings)
    gpu.say(CARD, f"process {STRANGER} {CAPACITY}")
    assert comes(lambda: scene.look().devices[0].unmanaged_bytes > 0)
    since = time.monotonic()
    ada.runs("iterate(1); session.leave()")
    scene.had_turn()
    train_together(ada, bob)
    carl = trainings("carl")
    carl.say("iterate(1); session.leave(); iterate(1); session.leave()")  # its demand is known
    scene.await_state("carl", "waiting")
    gpu.say(CARD)
    carl.end()
    are_well_and_leave(ada, bob, carl)
    return since


@row("each call of a GPU's driver fails once", is_quick=False)
def failing_driver(scene: Scene, trainings: Trainings) -> float:
    """The calls fail in one process, which continues. The other process is not affected."""
    ada, bob = both(trainings)
    ada.runs(f"exec({FAILS!r}, globals())")
    nth, since = 1, time.monotonic()
    while ada.runs(f"answer = iterate_with_failure({nth})"):
        bob.runs("iterate(1); session.leave()")
        scene.had_turn()
        nth += 1
    assert nth > 3
    until(lambda: len(chunks_of(bob.pid)) == 4 + 1)
    assert bob.is_well()
    assert ada.runs("answer = memory.is_valid()") == ""
    ada.close()
    are_well_and_leave(bob)
    return since
