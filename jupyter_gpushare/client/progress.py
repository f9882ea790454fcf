"""The total and the remaining iterations of a training loop, read from its tqdm bars."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """The iterations of a loop that remain, and all iterations of that loop."""

    left: int
    all: int


def from_tqdm() -> Progress | None:
    """Return the progress by the running bars; None if unknown.

    Nested bars multiply: with 3 epochs of 100, the first at batch 20, 280 of 300 are left.
    """
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        return None
    bars = sorted(_running(tqdm), key=lambda bar: abs(bar.pos))
    if not bars or any(bar.total is None for bar in bars):
        return None
    left = 0
    for bar in bars:
        left = (left - 1) * int(bar.total) if left else 0
        left += max(0, int(bar.total) - int(bar.n))
    return Progress(left, math.prod(int(bar.total) for bar in bars))


def _running(tqdm: Any) -> list[Any]:
    """Return the bars that are not closed. Notebook bars are in a set of their own class."""
    kinds = {tqdm.tqdm, getattr(sys.modules.get("tqdm.notebook"), "tqdm", tqdm.tqdm)}
    return [
        bar for kind in kinds for bar in tuple(getattr(kind, "_instances", ())) if not bar.disable
    ]
