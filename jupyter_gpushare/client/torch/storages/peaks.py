"""The peaks of PyTorch's statistics of a GPU, as user code sees them.

PyTorch has one peak for all readers, and each boundary begins a new one. So user code reads the
maximum of all peaks since its own last reset.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

Figures = dict[str, Any]  # nested; a figure with a peak is a dictionary with that key
PEAK = "peak"


class Peaks:
    """The peaks of `cuda:index`; from its construction on user code reads through it."""

    def __init__(self, index: int) -> None:
        import torch

        self._index = index
        self._most: Figures = {}
        self._read: Callable[[Any], Figures] = torch.cuda.memory_stats_as_nested_dict
        self._reset: Callable[[Any], None] = torch.cuda.reset_peak_memory_stats
        for module in (torch.cuda, torch.cuda.memory):
            module.memory_stats_as_nested_dict = self._read_by_user
            module.reset_peak_memory_stats = self._reset_by_user

    def figures(self) -> Figures:
        """Return the figures as PyTorch has them."""
        return self._read(self._index)

    def begin(self) -> None:
        """Begin a new peak, unseen by user code."""
        raise_peaks(self._most, self.figures())
        self._reset(self._index)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Hide the peak of allocations in the block from user code; the next peak begins at its
        end."""
        self.begin()
        try:
            yield
        finally:
            self._reset(self._index)

    def _read_by_user(self, device: Any = None) -> Figures:
        figures = self._read(device)
        if self._is_ours(device):
            raise_peaks(figures, self._most)
        return figures

    def _reset_by_user(self, device: Any = None) -> None:
        if self._is_ours(device):
            self._most = {}
        self._reset(device)

    def _is_ours(self, device: Any) -> bool:
        import torch

        index = device if isinstance(device, int | None) else torch.device(device).index
        return bool((torch.cuda.current_device() if index is None else index) == self._index)


@functools.cache
def peaks_of(index: int) -> Peaks:
    """Return the one instance for `cuda:index` in this process."""
    return Peaks(index)


def raise_peaks(figures: Figures, by: Figures) -> None:
    """Raise each peak of `figures` to that of `by` at least; add peaks that only `by` has."""
    for name, value in by.items():
        if isinstance(value, dict):
            raise_peaks(figures.setdefault(name, {}), value)
        elif name == PEAK:
            figures[name] = max(value, figures.get(name, 0))
