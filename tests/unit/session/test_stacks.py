"""A look at what other threads do, beside threads that come and go."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from jupyter_gpushare._core import others_wait
from jupyter_gpushare.client.torch.iterations.stacks import FrameId, id_of, runs
from jupyter_gpushare.client.torch.lanes.cuda_lane import PooledLane
from jupyter_gpushare.client.torch.storages.pools import move_storages

from ...polling import until

# A garbage collection that begins in a look closes files, and so lets other threads go on.
BUSY = """
import os, sys, threading, time, warnings
from jupyter_gpushare._core import stacks

warnings.simplefilter("ignore")
sys.setswitchinterval(1e-5)

class Knot:
    def __init__(self):
        self.itself, self.file = self, open(os.devnull)

def begins_threads():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def calls(depth):
    if depth:
        return calls(depth - 1)
    time.sleep(0.0005)

def sleeps():
    while True:
        calls(5)

threads = [threading.Thread(target=w, daemon=True) for w in (begins_threads,) * 2 + (sleeps,) * 2]
for thread in threads:
    thread.start()
asleep = threads[-1].ident
for _ in range(3000):
    knots = [Knot() for _ in range(20)]
    outermost = stacks()[asleep][-1]
    assert outermost.co_filename == threading.__file__, outermost
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.system
def test_a_look_at_the_stacks_of_threads_never_stops_them() -> None:
    """CPython 3.11 and before may stop all threads forever in `sys._current_frames`."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_a_frame_that_has_the_number_of_one_that_has_ended_is_another_one() -> None:
    here = sys._getframe()
    assert runs(id_of(here))
    assert not runs(FrameId(id(here), runs.__code__))
    assert not runs(None)


@contextmanager
def another_thread(does: Callable[[threading.Event], object]) -> Iterator[None]:
    may_end = threading.Event()
    thread = threading.Thread(target=does, args=(may_end,))
    thread.start()
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def waits_in(file: str) -> Callable[[threading.Event], object]:
    names: dict[str, Callable[[threading.Event], object]] = {}
    exec(compile("def wait(may_end): may_end.wait()", file, "exec"), names)
    return names["wait"]


def runs_python(may_end: threading.Event) -> None:
    while not may_end.is_set():
        pass


@pytest.mark.parametrize(
    "does",
    [threading.Event.wait, runs_python, waits_in("/lib/torch/utils/data/loader.py")],
    ids=["waits", "asks for the GIL", "waits for data"],
)
def test_a_thread_that_needs_the_gil_to_go_on_waits(does: Callable[..., object]) -> None:
    with another_thread(does):
        until(others_wait)


def test_nothing_moves_while_another_thread_waits_for_a_backward() -> None:
    kept = torch.ones(5)
    address = kept.data_ptr()
    with another_thread(waits_in("/lib/torch/autograd/graph.py")):
        until(lambda: not others_wait())
        assert not others_wait()
        assert not object.__new__(PooledLane).may_move()
        assert not move_storages(address.__eq__)
        assert kept.data_ptr() == address
    until(lambda: others_wait() and move_storages(address.__eq__))
    assert kept.data_ptr() != address


def test_a_thread_that_computes_without_the_gil_does_not_wait() -> None:
    def hashes(may_end: threading.Event) -> None:
        while not may_end.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)

    with another_thread(hashes):
        until(lambda: not others_wait())
        assert not others_wait()
    until(others_wait)
