"""Five ways in which notebooks share a device: what runs beside them, and what each of them does.

The notebooks' code is the same in all of them.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from measure import broker

from evidence.contest import quantum_lock
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.settings import Settings

# Times of the ways are scaled: they are given in iterations, for an iteration of this many
# seconds.
ITERATION_SECONDS = 1.2
QUANTUM = 30 / ITERATION_SECONDS
IDLE = 5 / ITERATION_SECONDS
OURS_SCALED = ("quantum_seconds", "boost_seconds")

Cell = Callable[[], AbstractContextManager[object]]


class Beside(NamedTuple):
    """Start what runs beside the notebooks; `iteration` is the time of one here, in seconds."""

    directory: Path
    iteration: float
    settings: Settings | None = None
    broker_pid: int | None = None


@contextmanager
def nothing(capacity: int, iteration: float) -> Iterator[Beside]:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        yield Beside(Path(home), iteration)


@contextmanager
def a_line(capacity: int, iteration: float) -> Iterator[Beside]:
    with (
        nothing(capacity, iteration) as beside,
        quantum_lock.server(_socket(beside), QUANTUM * iteration),
    ):
        yield beside


@contextmanager
def our_broker(capacity: int, iteration: float) -> Iterator[Beside]:
    scale = iteration / ITERATION_SECONDS
    scaled = {name: getattr(Settings(), name) * scale for name in OURS_SCALED}
    with broker(host_capacity_bytes=capacity, **scaled) as (settings, client):
        yield Beside(Path(settings.socket).parent, iteration, settings, client.welcome.pid)


def _socket(beside: Beside) -> Path:
    return beside.directory / "lock.sock"


# --- in a notebook, as long as it is open; what is yielded is around each of its cells ------------


@contextmanager
def unaware(beside: Beside, name: str) -> Iterator[Cell]:
    yield nullcontext


@contextmanager
def lock_with_quantum(beside: Beside, name: str) -> Iterator[Cell]:
    lock = quantum_lock.Lock(_socket(beside), beside.iteration, IDLE * beside.iteration)
    quantum_lock.gate(lock)
    yield nullcontext
    lock.close()


@contextmanager
def lock_file(beside: Beside, name: str) -> Iterator[Cell]:
    @contextmanager
    def cell() -> Iterator[None]:
        with open(beside.directory / "device.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    yield cell


@contextmanager
def shared(beside: Beside, name: str) -> Iterator[Cell]:
    """Share as `%gpushare on` does, with each cell as in a kernel."""

    @contextmanager
    def cell() -> Iterator[None]:
        sharing.cell_begins()
        try:
            yield
        finally:
            sharing.cell_ended()

    sharing.start(beside.settings, name=name)
    try:
        yield cell
    finally:
        sharing.stop()


class Way(NamedTuple):
    name: str
    beside: Callable[[int, float], AbstractContextManager[Beside]]
    notebook: Callable[[Beside, str], AbstractContextManager[Cell]]
    in_line: bool = False  # each begins when the one before is closed


STOCK = Way("stock PyTorch, all at once", nothing, unaware)
IN_LINE = Way("one notebook at a time", nothing, unaware, in_line=True)
LOCK = Way("lock with a quantum", a_line, lock_with_quantum)
LOCK_FILE = Way("lock file for each cell", nothing, lock_file)
OURS = Way("jupyter_gpushare", our_broker, shared)
WAYS = (STOCK, IN_LINE, LOCK, LOCK_FILE, OURS)
COMPARED = (STOCK, OURS)
