"""The delay of other sessions by the death of a kernel that holds the turn, or of the broker.

One process trains without end; we ask for the turn beside it. `lane_again_s` is the time from the
holder's SIGKILL to our grant. `service_again_s` is the time from the broker's SIGKILL until a new
one answers, `turn_again_s` until it has granted a turn to a session that waited; the session that
held the turn trains on all the while. Medians of ROUNDS.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import time
from multiprocessing.process import BaseProcess

from measure import Figure, broker, publish
from process import compute

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client

ROUNDS = 7
ITERATION_SECONDS = 0.005


def train(settings: Settings) -> None:
    session = Session(settings, name="holder")
    session.open()
    while True:
        session.enter()
        compute(ITERATION_SECONDS)
        session.boundary()


def holder(settings: Settings, subscriber: Client) -> BaseProcess:
    """Start a process that trains, once it holds the turn."""
    process = multiprocessing.get_context("fork").Process(target=train, args=(settings,))
    process.start()
    for snapshot in subscriber.watch(0.05):
        if any(lane.holder for lane in snapshot.devices[0].lanes):
            break
    return process


def ours(settings: Settings) -> Session:
    session = Session(settings, name="ours")
    session.open()
    return session


def after_a_killed_holder() -> float:
    """Return seconds from the kill to the grant. The turn is long, so only the death frees the
    lane."""
    with broker(quantum_seconds=60.0) as (settings, subscriber):
        process, session = holder(settings, subscriber), ours(settings)
        start = time.monotonic()
        process.kill()
        session.enter()
        seconds = time.monotonic() - start
        session.close()
        process.join()
    return seconds


def after_a_killed_broker() -> tuple[float, float]:
    """Return seconds from the kill until a new broker answers, and until it grants us a turn."""
    with broker() as (settings, subscriber):
        process, session = holder(settings, subscriber), ours(settings)
        start = time.monotonic()
        os.kill(subscriber.welcome.pid, signal.SIGKILL)
        Client.connect(settings, "benchmark").close()
        service = time.monotonic() - start
        session.enter()
        turn = time.monotonic() - start
        session.close()
        process.kill()
        process.join()
    return service, turn


def main() -> int:
    lane = statistics.median(after_a_killed_holder() for _ in range(ROUNDS))
    service, turn = zip(*(after_a_killed_broker() for _ in range(ROUNDS)), strict=True)
    return publish(
        "faults",
        [
            Figure("lane_again_s", lane, "s", target=1.0),
            Figure("service_again_s", statistics.median(service), "s", target=2.0),
            Figure("turn_again_s", statistics.median(turn), "s", target=2.0),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
