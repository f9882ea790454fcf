"""How many iterations a training loop still has: declared, or read off a tqdm bar."""

from __future__ import annotations

import sys
from typing import Any


def from_tqdm() -> int | None:
    """Iterations left by the progress bars that run now, outermost to innermost; None if unknown.

    Bars in bars multiply: with 3 epochs left of which one is at batch 20 of 100, 280 are left.
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
    """Bars that are not closed. Notebook bars are kept in a set of their own class."""
    kinds = {tqdm.tqdm, getattr(sys.modules.get("tqdm.notebook"), "tqdm", tqdm.tqdm)}
    return [
        bar for kind in kinds for bar in tuple(getattr(kind, "_instances", ())) if not bar.disable
    ]
