"""How many iterations of a training loop remain, read from its tqdm bars."""

from __future__ import annotations

import sys
from typing import Any


def from_tqdm() -> int | None:
    """Return the iterations that remain by the running progress bars; None if unknown.

    Nested bars multiply: with 3 epochs left, the present one at batch 20 of 100, 280 are left.
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
    return left


def _running(tqdm: Any) -> list[Any]:
    """Return the bars that are not closed. Notebook bars are in a set of their own class."""
    kinds = {tqdm.tqdm, getattr(sys.modules.get("tqdm.notebook"), "tqdm", tqdm.tqdm)}
    return [
        bar for kind in kinds for bar in tuple(getattr(kind, "_instances", ())) if not bar.disable
    ]
