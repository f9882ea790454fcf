"""How long a neighbour waits for the turn of a notebook that computes nothing.

A process trains, and then does something else in the same block of code: it reads a line, with
nothing of an iteration alive or with an output whose backward is to come, or its C code keeps
Python's lock. A neighbour asks for a turn after more than a quantum of this, or after less. Its
wait counts from the request, or from the end of the quantum if that is later. The promise is a
quarter of a second at most; so the neighbour waits half a second at most if the quantum has only
begun.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from measure import Figure, broker, publish

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings, as_environment

ROUNDS = 10
LATE_SECONDS = 0.25  # from the end of the quantum
NOTEBOOK = """
import ctypes, sys, torch
import jupyter_gpushare as gpushare

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(256, 64)

def train():
    for _ in range(8):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

def read():
    print("idle", flush=True)
    assert sys.stdin.readline()

def read_with_the_lock():
    print("idle", flush=True)
    assert ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1) == 1

with gpushare.session(name="notebook", device="host"):
    while True:
        train()
        IDLE
"""
IDLE = {
    "reads a line": "read()",
    "reads a line, an output alive": "output = net(x); read(); output.sum().backward()",
    "C code with Python's lock": "read_with_the_lock()",
}


@contextmanager
def notebook(settings: Settings, idle: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.replace("IDLE", idle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, **as_environment(settings)},
    )
    yield process
    process.kill()
    process.communicate()


def waits(settings: Settings, idle: str, idle_seconds: float) -> list[float]:
    """Return the seconds of waits that begin `idle_seconds` after the notebook is idle."""
    neighbour = Session(settings, name="neighbour", device="host")
    neighbour.open()
    found = []
    with notebook(settings, idle) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(ROUNDS):
            assert process.stdout.readline() == "idle\n"
            time.sleep(idle_seconds)
            since = time.monotonic()
            neighbour.enter()
            found.append(time.monotonic() - since)
            neighbour.boundary()
            neighbour.leave()
            process.stdin.write("\n")
            process.stdin.flush()
    neighbour.close()
    return found


def main() -> int:
    figures = []
    with broker() as (settings, _):
        quantum = settings.quantum_seconds
        for what, idle in IDLE.items():
            for when, idle_seconds in {"after": 2 * quantum, "within": 0.0}.items():
                found = waits(settings, idle, idle_seconds)
                target = LATE_SECONDS + (quantum if when == "within" else 0)
                name = f"{what}, asked {when} a quantum"
                figures.append(Figure(f"{name}, median", statistics.median(found), "s"))
                figures.append(Figure(f"{name}, longest", max(found), "s", target))
    return publish("idle_turn", figures)


if __name__ == "__main__":
    sys.exit(main())
