"""One iteration of a training, recorded, and repeated on a device that has room to spare.

The repetition has the tensors of that iteration, whose pages are written and read again, and sleeps
for as long as the training computed. So two repetitions show the throughput of two trainings on a
device that one training does not fill, whatever else this machine does.

    turns.replayed MODEL FILE             record an iteration of a model of squeeze.networks
    turns.replayed NAME FILE BOARD SIDE   repeat it, sharing on, for the seconds that each line says
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from process import command

SMALLEST = 64 << 10  # bytes of the smallest block that goes to a lane
PAGE = 4096
WARM_UP = 3  # iterations, in which the optimiser makes its state
RECORDINGS = 5  # the fastest counts
SOON = 0.0002  # seconds that are not slept on their own
SIDES = 3


class Step(NamedTuple):
    """After `seconds` of the iteration a block of `size` bytes begins, or, where `size` is 0, the
    block ends."""

    seconds: float
    block: int
    size: int


# --- recording ------------------------------------------------------------------------------------


def record(model: str, to: Path) -> list[Step]:
    subprocess.run(command("turns.replayed", model, str(to)), check=True)
    return read(to)


def read(path: Path) -> list[Step]:
    return [Step(*row) for row in json.loads(path.read_text())]


def _record(model: str) -> list[Step]:
    from squeeze.networks import TRAININGS

    torch.set_num_threads(1)
    training = TRAININGS[model]()
    for _ in range(WARM_UP):
        training.iterate()
    recorded = [_steps(_events(training.iterate)) for _ in range(RECORDINGS)]
    return min(recorded, key=lambda steps: steps[-1].seconds)


def _events(iterate: Callable[[], object]) -> list[tuple[int, int, int]]:
    """Return the events of the allocator: the time in nanoseconds, the address, and the bytes,
    which are negative for a free."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, record_shapes=True) as profile:
        iterate()
    left = list(profile.profiler.kineto_results.experimental_event_tree())
    found = []
    while left:
        event = left.pop()
        left += event.children
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    return sorted(found)


def _steps(events: list[tuple[int, int, int]]) -> list[Step]:
    """Return the steps of the blocks that begin and end in this iteration, and go to a lane."""
    open_blocks: dict[int, int] = {}
    steps: list[Step] = []
    ended = set()
    for at, address, size in events:
        seconds = (at - events[0][0]) / 1e9
        if size >= SMALLEST:
            open_blocks[address] = len(steps)
            steps.append(Step(seconds, len(steps), size))
        elif size <= -SMALLEST and (block := open_blocks.pop(address, None)) is not None:
            ended.add(block)
            steps.append(Step(seconds, block, 0))
    return [step for step in steps if step.block in ended]


class Peak(NamedTuple):
    """The most bytes that are alive at one time, and after how many steps: there the forward
    ends."""

    bytes: int
    step: int


def peak_of(steps: list[Step]) -> Peak:
    sizes = {step.block: step.size for step in steps if step.size}
    live, peak = 0, Peak(0, 0)
    for number, step in enumerate(steps, 1):
        live += step.size or -sizes[step.block]
        peak = max(peak, Peak(live, -number))  # the first one of equals
    return peak._replace(step=-peak.step)


# --- repeating ------------------------------------------------------------------------------------


class Board:
    """Shared by the processes of a set: the bytes that are alive in each, the most of
    all at one time, and, with a rhythm, one forward and one backward at a time."""

    def __init__(self, folder: Path, side: int) -> None:
        self._folder, self._side = folder, side
        file = os.open(folder / "live", os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, 16 * SIDES)
        self._cells = memoryview(mmap.mmap(file, 16 * SIDES)).cast("q")
        os.close(file)

    def add(self, size: int) -> None:
        cells = self._cells
        cells[self._side] += size
        together = sum(cells[:SIDES])
        cells[SIDES + self._side] = max(cells[SIDES + self._side], together)

    def most_together(self) -> int:
        """Return the most bytes of both at one time since the last call."""
        most: int = max(self._cells[SIDES:])
        for side in range(SIDES):
            self._cells[SIDES + side] = 0
        return most

    @contextmanager
    def alone_in(self, phase: str) -> Iterator[None]:
        if not (self._folder / "rhythm").exists():
            yield
            return
        with open(self._folder / phase, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def set_rhythm(self) -> None:
        (self._folder / "rhythm").touch()


class Replay:
    def __init__(self, steps: list[Step], board: Board) -> None:
        self._steps, self._board = steps, board
        self._peak = peak_of(steps).step
        self._blocks: dict[int, torch.Tensor] = {}

    def iterate(self) -> None:
        with self._board.alone_in("forward"):
            self._play(0, self._peak)
        with self._board.alone_in("backward"):
            self._play(self._peak, len(self._steps))

    def _play(self, begin: int, end: int) -> None:
        now = self._steps[begin - 1].seconds if begin else 0.0
        due = time.monotonic()
        for step in self._steps[begin:end]:
            due += step.seconds - now
            now = step.seconds
            if (left := due - time.monotonic()) > SOON:
                time.sleep(left)
            before = time.monotonic()
            self._begin(step) if step.size else self._end(step.block)
            due += time.monotonic() - before  # a wait for memory is none of computing

    def _begin(self, step: Step) -> None:
        block = torch.empty(step.size, dtype=torch.uint8)
        block[::PAGE] = step.block % 251
        self._blocks[step.block] = block
        self._board.add(step.size)

    def _end(self, number: int) -> None:
        block = self._blocks.pop(number)
        if not bool((block[::PAGE] == number % 251).all()):
            raise RuntimeError(f"block {number} has other bytes than were written")
        self._board.add(-block.numel())


def _repeat(name: str, replay: Replay) -> None:
    """Print how many iterations were done, and in how many seconds."""
    import jupyter_gpushare as gpushare

    torch.set_num_threads(1)
    with gpushare.session(name=name):
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            seconds, began, count = float(line), time.monotonic(), 0
            for _ in gpushare.iterations(iter(int, 1)):
                replay.iterate()
                count += 1
                if time.monotonic() - began > seconds:
                    break
            print(json.dumps([count, time.monotonic() - began]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(json.dumps(_record(sys.argv[1])))
    else:
        steps, board = read(Path(sys.argv[2])), Board(Path(sys.argv[3]), int(sys.argv[4]))
        _repeat(sys.argv[1], Replay(steps, board))
