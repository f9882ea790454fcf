"""The context switch between two processes, against two bare processes on one socket pair.

Two real sessions both want the turn all the time, and iterate until they are asked to yield. A
context switch lasts from the end of the one's last iteration to the start of the other's first: it
includes the look at the socket that finds the request to yield, and the direct handoff to the
successor. The floor is a round trip of two messages of the same size without any broker.

`at_1_ms_ratio` is the promise. Both sides have the rhythm of a short iteration: the process with
the turn, or the message, computes for HOLD_SECONDS before it passes it on, and the other one sleeps
meanwhile. The figures without a prefix compare iterations of no length with a bare ping-pong, back
to back. Their ratio has no promise: the floor's two processes hardly sleep, and the kernel puts
them on one core or on two, which doubles the floor, while a context switch always wakes a process
that has slept. In the figures `at_cell_end` each turn ends after one iteration, before another
session asks for it, so that it goes by way of the broker. All are measured in alternating blocks
within the same two processes.

The cores are kept from sleeping, as for cyclictest. Otherwise the cores of a context switch would
sleep, while the floor's core never does; and the time to wake a core, a tenth of a millisecond or
more in a virtual machine, would be most of the result. The figures `with_sleep` are those of
`ratio` with cores that may sleep.
"""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

from measure import Figure, awake_cores, broker, percentile, publish
from process import compute

from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.demand import Demand

HOLD_SECONDS = 0.001
BLOCKS = 30
PER_BLOCK = 100
TURN_SECONDS = 0.02  # at most, where the other has had all its turns
WARM_UP = 10  # of each block: sockets, caches, the other process waking up
MESSAGE = bytes(64)
PROMISED = "at_1_ms_"  # the figures whose ratio is


class Known(WholeProcess):
    """The memory of a session whose demand is known; PyTorch's memory is as quick once it has
    learned."""

    def demand(self) -> Demand:
        return Demand(100 << 20, 200 << 20, measured=True)


def ping(peer: socket.socket, hold: float) -> list[float]:
    """Return seconds of each round trip, less the time for which the other side holds the
    message."""
    times = []
    for _ in range(PER_BLOCK):
        compute(hold)
        start = time.perf_counter()
        peer.sendall(MESSAGE)
        peer.recv(len(MESSAGE))
        times.append(time.perf_counter() - start - hold)
    return times[WARM_UP:]


def pong(peer: socket.socket, hold: float) -> list[float]:
    for _ in range(PER_BLOCK):
        message = peer.recv(len(MESSAGE))
        compute(hold)
        peer.sendall(message)
    return []


def turns(session: Session, hold: float, most: float) -> list[tuple[float, float]]:
    """Return when each turn arrived, and when its last iteration ended; one clock for both."""
    times = []
    for _ in range(PER_BLOCK):
        session.enter()
        entered = time.monotonic()
        over = entered
        while session.holding and over <= entered + most:  # as in training, until a boundary
            compute(hold)
            over = time.monotonic()
            session.boundary()
        session.leave()  # as at the end of a cell
        times.append((entered, over))
    return times


def play(
    name: str,
    settings: Settings,
    hold: float,
    most: float,
    peer: socket.socket,
    results: Connection,
) -> None:
    """One of the two processes: a block of the floor, a block of turns, and so on."""
    session = Session(settings, name=name)
    session.memory = Known()
    session.open()
    session.cell_begins()
    floor: list[float] = []
    taken: list[list[tuple[float, float]]] = []
    for _ in range(BLOCKS):
        floor += ping(peer, hold) if name == "a" else pong(peer, hold)
        peer.sendall(b"!")  # both are there before the first asks
        peer.recv(1)
        taken.append(turns(session, hold, most))
    results.send((floor, taken))
    session.close()


def change_overs(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[float]:
    """Return seconds from each turn's end to the start of the next, where the turn went across."""
    marked = sorted([(*turn, "a") for turn in a] + [(*turn, "b") for turn in b])
    pairs = list(itertools.pairwise(marked))[WARM_UP:]
    return [later[0] - earlier[1] for earlier, later in pairs if earlier[2] != later[2]]


def measure(
    settings: Settings, hold: float = 0.0, most: float = TURN_SECONDS
) -> tuple[list[float], list[float]]:
    """Return seconds of every round trip of the floor, and of every context switch."""
    fork = multiprocessing.get_context("fork")
    sockets, pipes = socket.socketpair(), [fork.Pipe() for _ in "ab"]
    parts = zip("ab", sockets, pipes, strict=True)
    processes = [
        fork.Process(target=play, args=(n, settings, hold, most, s, p[1])) for n, s, p in parts
    ]
    for process in processes:
        process.start()
    (floor, a), (_, b) = (pipe[0].recv() for pipe in pipes)
    for process in processes:
        process.join()
    return floor, [time for blocks in zip(a, b, strict=True) for time in change_overs(*blocks)]


def figures(prefix: str, floor: list[float], across: list[float]) -> list[Figure]:
    p50, floor_p50 = statistics.median(across), statistics.median(floor)
    return [
        Figure(f"{prefix}p50_us", p50 * 1e6, "us"),
        Figure(f"{prefix}p99_us", percentile(across, 99) * 1e6, "us", target=2000),
        Figure(f"{prefix}floor_p50_us", floor_p50 * 1e6, "us"),
        Figure(f"{prefix}ratio", p50 / floor_p50, target=2 if prefix == PROMISED else None),
    ]


def main() -> int:
    with broker(quantum_seconds=1e-6, half_life_seconds=1e-6) as (settings, _):
        with awake_cores():
            measured = {
                "": measure(settings),
                PROMISED: measure(settings, hold=HOLD_SECONDS),
                "at_cell_end_": measure(settings, most=0.0),
            }
        measured["with_sleep_"] = measure(settings)
    return publish(
        "handover", [row for prefix, times in measured.items() for row in figures(prefix, *times)]
    )


if __name__ == "__main__":
    sys.exit(main())
