"""Lanes whose notebooks come to need more of them, and less, while they train."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpushare.protocol import LaneView, SessionView, Snapshot

from .cases import LARGE, MODEL, RESULT
from .conftest import last_json, results_alone

if TYPE_CHECKING:
    from .conftest import Notebook
    from .scribbler import Scribbler

MIB = 1 << 20
# Goes on with the training, on batches of so many rows.
TRAIN = """
for _ in range({iterations}):
    x, y = torch.randn({rows}, width), torch.randint(0, 4, ({rows},))
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
FORGOTTEN = 80  # iterations, after which a demand knows nothing of those before them
ITERATIONS = 20
MEDIUM = TRAIN.format(rows=1024, iterations=ITERATIONS)
TALL = TRAIN.format(rows=4096, iterations=ITERATIONS)
SHORT = TRAIN.format(rows=256, iterations=FORGOTTEN)

COUNT_OVERFLOWS = """
overflows = []

def counting(end_of_iteration=session.boundary):
    overflows.append(_core.Lane.usage().overflows)
    end_of_iteration()

session.boundary = counting
"""


def alone(*cells: str) -> Any:
    """What the cells leave behind in a plain interpreter, where nobody has heard of sharing."""
    return results_alone({"cells": "".join((LARGE, MODEL, *cells, RESULT))})["cells"]


@pytest.fixture
def lanes(look: Callable[[], Snapshot]) -> Callable[[], list[LaneView]]:
    """The lanes, as a looker sees them now."""
    return lambda: look().devices[0].lanes


@pytest.fixture
def lane_bytes(lanes: Callable[[], list[LaneView]]) -> Callable[[], list[int]]:
    """What the lanes may take of memory, in whole pages."""
    return lambda: sorted(-lane.bytes // mmap.PAGESIZE * -mmap.PAGESIZE for lane in lanes())


@pytest.fixture
def in_memory(look: Callable[[], Snapshot]) -> Callable[[], list[int]]:
    """What there is in memory of each lane that the broker, a session or this process has."""

    def in_memory() -> list[int]:
        snapshot = look()
        pids = {os.getpid(), snapshot.broker.pid}
        pids.update(view.pid for view in snapshot.devices[0].sessions)
        found = dict(entry for pid in pids for entry in _memory_of_lanes(pid))
        return sorted(size for size in found.values() if size)

    return in_memory


def _memory_of_lanes(pid: int) -> Iterator[tuple[int, int]]:
    """Number and bytes of each file of a lane that a process has open."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            if "memfd:gpushare-lane" in os.readlink(file):
                yield (status := file.stat()).st_ino, status.st_blocks * 512


def test_a_lane_is_as_large_as_its_notebook_needs_it_while_it_trains(
    ours: Notebook,
    scribbler: Scribbler,
    lane_bytes: Callable[[], list[int]],
    in_memory: Callable[[], list[int]],
) -> None:
    """The neighbour fills it each time, so that there is as much of it as there may be."""
    cells = (SHORT, MEDIUM, TALL, MEDIUM, SHORT)
    ours.run(LARGE + MODEL)
    sizes = []
    for cell in cells:
        before = scribbler.overwrites
        ours.run(cell)
        assert scribbler.overwrites - before >= ITERATIONS - 1
        scribbler.take_turns()
        while in_memory() != lane_bytes():
            pass
        sizes += lane_bytes()
    short, medium, tall, still_tall, short_again = sizes
    assert short_again == short < medium < tall == still_tall
    assert tall >= 4096 * 512 * 4, "one activation"
    assert last_json(ours.run(RESULT)) == alone(*cells)


def test_a_lane_leaves_nothing_in_memory_when_its_last_notebook_leaves(
    ours: Notebook,
    scribbler: Scribbler,
    lane_bytes: Callable[[], list[int]],
    in_memory: Callable[[], list[int]],
) -> None:
    ours.run(MEDIUM)
    assert sum(in_memory()) > MIB
    ours.run("%gpushare off")
    scribbler.take_turns()
    assert lane_bytes() == [mmap.PAGESIZE]  # the neighbour's one byte
    while in_memory() != lane_bytes():
        pass
    scribbler.close()
    while in_memory():
        pass


def test_what_overflows_a_lane_is_computed_elsewhere_and_the_next_turn_has_a_larger_lane(
    ours: Notebook,
    sessions: Callable[[], dict[str, SessionView]],
    lane_bytes: Callable[[], list[int]],
) -> None:
    ours.run(LARGE + MODEL + COUNT_OVERFLOWS)
    ours.run(SHORT)
    demand, (before,) = sessions()["ours"].ephemeral_bytes, lane_bytes()
    ours.run(TALL)
    overflows = last_json(ours.run("print(json.dumps(overflows))"))[-ITERATIONS:]
    assert overflows[0] > 0
    assert overflows[1:] == [overflows[0]] * (ITERATIONS - 1)
    assert sessions()["ours"].ephemeral_bytes > demand
    assert lane_bytes() > [before]
    assert last_json(ours.run(RESULT)) == alone(SHORT, TALL)
