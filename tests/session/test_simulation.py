"""The results of the simulator agree with real processes at a real broker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from jupyter_gpushare._core import Cell, Demand, Job
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator.simulate import run
from jupyter_gpushare.simulator.workload import Workload
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

ITERATION, WARM, OPEN = 0.03, 10, 10.0
LENGTHS = {"middle": 60, "long": 120, "short": 20}
APART = 0.35

WORK = f"""
import sys, time
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import load

name, count = sys.argv[1], int(sys.argv[2])
session = Session(load(device="host"), name=name, remaining_iterations={WARM} + count)
session.open()
for count in ({WARM}, count):
    session.cell_begins()
    for _ in range(count):
        session.enter()
        time.sleep({ITERATION})
        session.boundary()
    session.leave()
    session.cell_ends()
    print(flush=True)
    sys.stdin.readline()
session.close()
"""


@contextmanager
def notebook(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has done its first iterations, and waits for a line to do the others."""
    words = [sys.executable, "-c", WORK, name, str(LENGTHS[name])]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "\n"
        yield started


def ended(client: Client) -> Iterator[str]:
    """Return names, in the order in which they have done all their iterations."""
    left = set(LENGTHS)
    for snapshot in client.watch(0.05):
        for session in snapshot.devices[0].sessions:
            if session.name in left and session.iterations == WARM + LENGTHS[session.name]:
                left.remove(session.name)
                yield session.name
        if not left:
            return


def simulated(policy: str) -> list[str]:
    jobs = [
        Job(
            name,
            [Cell(WARM, ITERATION), Cell(count, ITERATION, OPEN - number * (1 - APART))],
            user="u",
            arrival=float(number),
            demand=Demand(100 << 20, 0, measured=False),
            declares=True,
            stays=1e6,
        )
        for number, (name, count) in enumerate(LENGTHS.items())
    ]
    ended = {each.id: each.ended or 0.0 for each in run(Workload(jobs, 16 << 30), policy).outcomes}
    return sorted(ended, key=ended.__getitem__)


@pytest.mark.system
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("fifo", marks=pytest.mark.thorough),
        pytest.param("srtf", marks=pytest.mark.thorough),
        "fair",
    ],
)
def test_real_notebooks_end_in_the_order_that_is_simulated(policy: str, settings: Settings) -> None:
    with Client.connect(settings, "tests") as client, ExitStack() as stack:
        client.ask(SetPolicy(policy))
        started = {name: stack.enter_context(notebook(name)) for name in LENGTHS}
        for each in started.values():
            print(file=each.stdin, flush=True)
            time.sleep(APART)
        ends = list(ended(client))
        for each in started.values():
            print(file=each.stdin, flush=True)
    assert ends == simulated(policy)
