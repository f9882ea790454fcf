"""Two trainings that would need 1.5 times the device if they ran at once without sharing.

With plenty of room, the broker measures the need of each at its peak, and both run one after the
other; `ratio` is relative to that time. Then both start at once, in new processes, on a device of
1/1.5 of the joint need. `finished` is how many did all their iterations.
"""

from __future__ import annotations

import os
import sys

from measure import Figure, broker, publish
from training import trainers

from jupyter_gpushare.wire.client import Client
from turns.total import one_after_the_other, together

MODELS = ("large_cnn", "large_transformer")
ITERATIONS = 20
OVERCOMMITMENT = 1.5
MIB = 1 << 20


def sum_of_peaks(client: Client) -> int:
    sessions = client.look().devices[0].sessions
    return sum(session.persistent_bytes + session.ephemeral_bytes for session in sessions)


def with_room() -> tuple[float, int]:
    """Return seconds one after the other, and the bytes of both."""
    with broker() as (settings, client), trainers(settings, MODELS) as started:
        return one_after_the_other(started, ITERATIONS), sum_of_peaks(client)


def without_room(capacity: int) -> tuple[float, int]:
    """Return seconds of both at once, and how many of them did all their iterations."""
    with broker(host_capacity_bytes=capacity) as (settings, client):
        with trainers(settings, MODELS) as started:
            seconds = together(started, ITERATIONS)
            sessions = client.look().devices[0].sessions
        return seconds, sum(session.iterations == ITERATIONS for session in sessions)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    serial, peaks = with_room()
    capacity = int(peaks / OVERCOMMITMENT)
    seconds, finished = without_room(capacity)
    return publish(
        "overcommit",
        [
            Figure("sum_of_peaks_MiB", peaks / MIB, "MiB"),
            Figure("capacity_MiB", capacity / MIB, "MiB"),
            Figure("finished", finished, target=len(MODELS), at_least=True),
            Figure("serial_seconds", serial, "s"),
            Figure("ratio", seconds / serial),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
