"""The results of the simulator agree with real processes at a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare._core import Cell, Demand, Job
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator.simulate import run as simulation
from jupyter_gpushare.simulator.workload import Workload
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy

from .conftest import Process

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
    print("ready", flush=True)
    sys.stdin.readline()
session.close()
"""


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
    outcomes = simulation(Workload(jobs, 16 << 30), policy).outcomes
    ended = {each.id: each.ended or 0.0 for each in outcomes}
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
def test_real_notebooks_end_in_the_order_that_is_simulated(
    policy: str, settings: Settings, run: Callable[..., Process]
) -> None:
    with Client.connect(settings, "tests") as client:
        client.ask(SetPolicy(policy))
        started = []
        for name, length in LENGTHS.items():
            started.append(run(WORK, name, length))
            assert started[-1].line() == "ready"
        for each in started:
            each.say()
            time.sleep(APART)
        ends = list(ended(client))
        for each in started:
            each.say()
            each.popen.wait(60)
    assert ends == simulated(policy)
