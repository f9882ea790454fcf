"""A recorded trace of tensor storages, as the lane of an iteration sees it.

A trace is CSV, gzipped or not, with a row for each allocation and each free: op (a or f), id, size
in bytes, iteration. Two kinds of blocks never come to a lane: those below 64 KiB, and survivors,
which live over the end of an iteration and are known in advance (pretenured). Neither their
allocation nor their free is a step here, so they are left out of the live bytes and of the
footprint alike.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SMALLEST = 64 << 10  # bytes of the smallest block that goes to a lane

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SHIPPED = sorted(DATA.glob("alloc_trace_*.csv.gz"))


class Step(NamedTuple):
    """The allocation of a block of `size` bytes, or, where `size` is 0, its free."""

    block: int  # counted from 0, in the order of the allocations
    size: int


def name_of(path: Path) -> str:
    return path.name.split(".")[0].removeprefix("alloc_trace_")


def read(path: Path, smallest: int = SMALLEST) -> list[Step]:
    """The steps of the trace in `path` in a lane, without blocks below `smallest` bytes."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = list(csv.DictReader(file))
    begins = {row["id"]: row for row in rows if row["op"] == "a"}
    inside = [
        row["id"]
        for row in rows
        if row["op"] == "f"
        and (begin := begins.get(row["id"])) is not None
        and begin["iteration"] == row["iteration"]
        and int(begin["size"]) >= smallest
    ]
    return number(rows, set(inside))


def number(rows: Sequence[dict[str, str]], inside: set[str]) -> list[Step]:
    """Return the rows of the blocks `inside` as steps."""
    blocks: dict[str, int] = {}
    return [
        Step(blocks.setdefault(row["id"], len(blocks)), int(row["size"]) * (row["op"] == "a"))
        for row in rows
        if row["id"] in inside
    ]


def peak_bytes(steps: Sequence[Step]) -> int:
    """Return the most bytes that were alive at once, in the sizes that were asked for."""
    sizes: dict[int, int] = {}
    live = peak = 0
    for block, size in steps:
        live += size or -sizes[block]
        sizes[block] = size
        peak = max(peak, live)
    return peak
