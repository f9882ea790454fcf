"""A notebook of the comparison: cells of iterations of plain PyTorch, in a process of its own."""

from __future__ import annotations

import ctypes
import time
from typing import Any, NamedTuple

from evidence.contest.ways import Beside, Cell, Way

Span = tuple[float, float]


class Notebook(NamedTuple):
    """The iterations of each cell. The first cell is wanted at once; each further one every `gap`
    seconds, or, without a gap, `pause` seconds after the end of the cell before."""

    name: str
    pictures: int  # of a batch
    cells: tuple[int, ...]
    pause: float = 0.0
    gap: float = 0.0


class Diary(NamedTuple):
    """The diary of a notebook, in seconds since all began."""

    iterations: list[Span]  # from the moment when it computes, to its end
    cells: list[Span]  # from the moment when it was wanted, to its end

    @property
    def ended(self) -> float:
        return self.cells[-1][1]


def work(way: Way, beside: Beside, notebook: Notebook, pipe: Any) -> None:
    """Report when it is open, receive the moment when all began, and send the diary."""
    warm_up()
    with way.notebook(beside, notebook.name) as cell:
        pipe.send(None)
        pipe.send(run(notebook, cell, began=pipe.recv()))


def warm_up() -> None:
    """Let the libraries allocate what they retain, and empty libc's heap."""
    from evidence.contest.network import network

    _, iterate = network(4)
    iterate()
    del iterate
    ctypes.CDLL(None).malloc_trim(0)


def run(notebook: Notebook, cell: Cell, began: float) -> Diary:
    """The first cell makes model and data, and the notebook keeps them."""
    from evidence.contest.network import network

    diary = Diary([], [])
    made = None
    for number, count in enumerate(notebook.cells):
        if notebook.gap:
            wanted = number * notebook.gap
        else:
            wanted = diary.ended + notebook.pause if number else 0.0
        time.sleep(max(0.0, began + wanted - time.monotonic()))
        with cell():
            stopwatch, iterate = made = made or network(notebook.pictures)
            for _ in range(count):
                iterate()
                diary.iterations.append((stopwatch.at - began, time.monotonic() - began))
        diary.cells.append((wanted, time.monotonic() - began))
    return diary
