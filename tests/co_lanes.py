"""Follows the parts of one lane that two processes have, by reading their ledger all the time."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from jupyter_gpushare.wire.snapshot import LaneView, Snapshot

from .conftest import Look
from .polling import comes, until
from .system.faults.scene import ledgers
from .unit.broker.lanes.test_co_lanes import Claims, claims

PERSISTENT, EPHEMERAL = 1_106_004, 24 << 16  # bytes of one of the trainings
CHUNK = 64 << 10
LOOK_SECONDS = 0.0005
CHANGE_SECONDS = 5.0  # lanes that do not change in this time stay as they are


def capacity(trainings: int) -> int:
    """Bytes for this many trainings whose lane is a fourth larger than one of them needs."""
    return trainings * PERSISTENT + EPHEMERAL * 5 // 4


class Watch:
    """Reads the ledger of a lane all the time, in a thread."""

    def __init__(self, pids: list[int], width: int) -> None:
        """`pids` are those of both processes. Neither has ledgers of former lanes any more."""
        self._ledger = -1
        until(lambda: self._has_opened(*map(ledgers, pids)))
        self._chunks = width // CHUNK
        self.together = 0  # looks at which both were in an iteration
        self.above = 0  # looks at which both had more than the lane
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _has_opened(self, first: dict[int, Path], second: dict[int, Path]) -> bool:
        for number in first.keys() & second.keys():
            with contextlib.suppress(FileNotFoundError):  # closed just now
                self._ledger = os.open(first[number], os.O_RDONLY)
        return self._ledger >= 0

    def overwrite(self, noise: bytes) -> None:
        """The ledger, as a process of this lane could."""
        with open(f"/proc/self/fd/{self._ledger}", "r+b", buffering=0) as file:
            file.write(noise)

    def now(self) -> Claims:
        return claims(self._ledger)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            seen = self.now()
            self.together += min(seen.bounds) > 0
            self.above += sum(seen.extents) > self._chunks

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        os.close(self._ledger)


def shared_lane(snapshot: Snapshot) -> LaneView | None:
    """Return the lane that has two holders."""
    lanes = (lane for lane in snapshot.devices[0].lanes if lane.beside is not None)
    return next(lanes, None)


def begun(look: Look) -> Watch:
    """Return when two processes compute at once. A session whose demand was not known before may
    have changed the lanes until then."""
    found: list[Watch] = []

    def has_begun() -> bool:
        snapshot = look()
        if (lane := shared_lane(snapshot)) is None:
            return False
        while found:
            found.pop().close()
        pids = {view.id: view.pid for view in snapshot.devices[0].sessions}
        pair = [pids[id] for id in (lane.holder, lane.beside) if id is not None]
        found.append(watch := Watch(pair, lane.width_bytes))
        return comes(lambda: watch.together > 20, CHANGE_SECONDS)

    until(has_begun)
    return found[0]


def end_of(pid: int, snapshot: Snapshot) -> int:
    """Return the end of the lane that a process has; `beside` has the second one."""
    device = snapshot.devices[0]
    id = next(view.id for view in device.sessions if view.pid == pid)
    return next(int(lane.beside == id) for lane in device.lanes if lane.width_bytes)


def is_inside(seen: Claims, end: int, which: str) -> bool:
    both = min(seen.bounds) > 0 and seen.extents[end] > 0
    return both and (seen.elder == end) == (which == "elder")
