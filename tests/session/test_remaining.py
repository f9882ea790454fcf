"""Remaining iterations are read off the progress bars that run."""

from __future__ import annotations

import io

from tqdm import tqdm

from jupyter_gpushare.client import progress as remaining


def bar(length: int | None) -> tqdm:  # type: ignore[type-arg]
    return tqdm(total=length, file=io.StringIO())


def test_a_bar_tells_the_rest_of_it() -> None:
    assert remaining.from_tqdm() is None
    with bar(100) as batches:
        batches.update(30)
        assert remaining.from_tqdm() == 70
    with bar(None):
        assert remaining.from_tqdm() is None


def test_bars_in_bars_multiply() -> None:
    with bar(5) as epochs, bar(100) as batches:
        epochs.update(2)
        batches.update(20)
        assert remaining.from_tqdm() == 2 * 100 + 80
