"""Processes that are killed at the worst moment: while they move survivors out of the lane."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import pytest

from jupyter_gpushare.wire.snapshot import Snapshot

from ..programs.cells import BODIES, LARGE, MODEL, RESULT
from ..snapshots import is_valid
from .conftest import last_json, results_alone

if TYPE_CHECKING:
    from .conftest import Notebook
    from .scribbler import Scribbler

KILLS = 4  # in the middle of a promotion
TRAIN = BODIES["zero_grad_first"]

# For each line that it reads, a process that trains until it is killed, or left alone. Its
# iterations have no two blocks in common, so that nothing is known of them, and each second block
# survives in a place of its own. It prints "(" before it promotes them, and ")" afterwards.
VICTIMS = """
import os, sys
import torch
import jupyter_gpushare as gpushare

torch.set_num_threads(1)

def train():
    with gpushare.session(name="victim", device="host") as session:
        def evacuate(promote=session.memory.evacuate):
            survivors = session.memory.survivors()
            survivors and os.write(1, b"(")
            promote()
            survivors and os.write(1, b")")
        session.memory.evacuate = evacuate
        for number in gpushare.iterations(range(1_000_000)):
            if os.getppid() != parent:
                return
            kept = None
            blocks = [torch.full((16_384 + 1_024 * number,), float("nan")) for _ in range(400)]
            kept = blocks[::2]
            del blocks

parent = os.getpid()
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.write(1, f"{os.getpid()}\\n".encode())
        train()
        os._exit(1)
    os.waitpid(pid, 0)
    os.write(1, b".")
"""


@pytest.fixture
def victims(ours: Notebook) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", VICTIMS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as victims:
        yield victims
        victims.kill()


def read_to(output: IO[bytes], mark: bytes) -> bytes:
    """Return the output before the mark."""
    found = b""
    while not found.endswith(mark):
        byte = output.read(1)
        assert byte, f"a victim ended by itself, after {found!r}"
        found += byte
    return found[: -len(mark)]


class Victim:
    """It has promoted once when it is made."""

    def __init__(self, victims: subprocess.Popen[bytes]) -> None:
        assert victims.stdin
        assert victims.stdout
        victims.stdin.write(b"\n")
        self._output = victims.stdout
        self._pid = int(read_to(self._output, b"\n"))
        read_to(self._output, b"(")
        began = time.monotonic()
        read_to(self._output, b")")
        self._seconds = time.monotonic() - began  # that a promotion takes

    def kill(self) -> bool:
        """Kill it at a random moment of its next promotion. Return whether it was still in the
        middle of it."""
        read_to(self._output, b"(")
        time.sleep(random.uniform(0, self._seconds / 2))  # later ones take less than the first
        os.kill(self._pid, signal.SIGKILL)
        return b")" not in read_to(self._output, b".")


@pytest.mark.system
def test_a_process_that_is_killed_in_promotion_costs_its_neighbours_nothing(
    victims: subprocess.Popen[bytes],
    ours: Notebook,
    scribbler: Scribbler,
    look: Callable[[], Snapshot],
    memory_follows: Callable[[], None],
) -> None:
    """They train meanwhile, and the lane is theirs again each time."""
    ours.run(LARGE + MODEL)
    outcomes: list[bool] = []
    while outcomes.count(True) < KILLS:
        victim = Victim(victims)
        cell = ours.start(TRAIN)
        outcomes.append(victim.kill())
        ours.end(cell)
        scribbler.take_turns()
        (device,) = look().devices
        assert {view.name for view in device.sessions} == {"ours", "scribbler"}
        assert is_valid(device)
        memory_follows()
    alone = results_alone({"cells": LARGE + MODEL + len(outcomes) * TRAIN + RESULT})["cells"]
    assert last_json(ours.run(RESULT)) == alone
