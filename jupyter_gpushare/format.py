"""Figures and names in words: sentences, tables and errors all write them this way."""

from __future__ import annotations

import math
import time

# The words for these figures, everywhere; the panel has the same table.
LABELS = {
    "persistent": "model and data",
    "ephemeral": "working memory",
    "unmanaged": "unmanaged memory",
    "position": "queue position",
}


def size(count: int) -> str:
    """Return bytes in the unit that leaves one to four digits: ``1.4 GiB``. Halves go up.

    labextension/src/state/format.ts has the same rule.
    """
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1000:
            break
        amount, unit = amount / 1024, larger
    if unit == "B" or amount >= 100:
        return f"{math.floor(amount + 0.5)} {unit}"
    return f"{math.floor(10 * amount + 0.5) / 10:.1f} {unit}"


NEXT_SECONDS = 1.0  # a shorter expected wait reads "next"


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``3.2 s``, ``45 s``, ``2 min 30 s``, ``12 min``, ``2 h 5
    min``"""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def expected(seconds: float | None, is_bound: bool) -> str:
    """Return an expected wait: ``about 64 s``, ``at most 64 s`` where it is only a bound, ``next``,
    or ``unknown`` where it is None. labextension/src/state/sentences.ts has the same rule."""
    if seconds is None:
        return "unknown"
    if seconds < NEXT_SECONDS:
        return "next"
    return f"{'at most' if is_bound else 'about'} {duration(seconds)}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number_of_gpus(gpus: float) -> str:
    """Return ``1 GPU``, ``4 GPUs`` or ``0.25 of a GPU``."""
    return f"{gpus:g} of a GPU" if gpus < 1 else counted(round(gpus), "GPU")


def clock(unix: float) -> str:
    """Return the time of day on this machine's clock: ``10:00``."""
    return time.strftime("%H:%M", time.localtime(unix))


def moment(unix: float) -> str:
    """Return day and time on this machine's clock: ``Tue 10:00``."""
    return time.strftime("%a %H:%M", time.localtime(unix))


def title(label: str) -> str:
    return label[:1].upper() + label[1:]


def plain(text: str) -> str:
    """Return the text without characters that control a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
