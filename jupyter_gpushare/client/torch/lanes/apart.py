"""The memory of the first iterations on a GPU, which run outside of the lane.

They have a pool of their own. Memory that persists from then on, such as an optimiser's state,
would keep segments alive that have room for a whole iteration. So it moves twice. At the end of a
turn it moves to a pool that packs it, since the session's memory then has to be as small as
reported. When the next iteration begins, it moves out of that pool. Import this after torch.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ..storages import pools
from ..storages.peaks import peaks_of
from . import captures

MOST = 8  # iterations that have such a pool: later ones leave little behind, and moving takes time


class Apart:
    """The pool of one such iteration of `cuda:index`."""

    def __init__(self, index: int) -> None:
        captures.watch()
        self._index = index
        self._to_come = MOST
        self._pool: Any = None  # of the open iteration
        self._left: Any = None  # of the last one
        self._packed: Any = None  # of what persists, while no iteration has begun
        self._makes_all = False  # CUDA was not in use when the open iteration began
        self._places: list[range] = []  # addresses of segments that iterations have left

    def begin(self) -> None:
        self.settle()
        if self._to_come:
            self._to_come -= 1
            self._pool = pools.new(self._index)
            pools.begin_routing(self._index, self._pool)

    def begin_without_cuda(self) -> None:
        """Begin an iteration when no pool can be made yet. If it uses CUDA, all memory of the GPU
        was made in it."""
        self._makes_all = True

    def end(self) -> None:
        if self._pool is not None:
            pools.end_routing(self._index, self._pool)
            self._left, self._pool = self._pool, None
        elif self._makes_all and torch.cuda.is_initialized():
            self._note_places(torch.cuda.memory_snapshot())
        self._makes_all = False

    def pack(self) -> None:
        """Move the persistent memory of the last iteration to where it takes least, since the turn
        ends. Gradients move as well; they are gone when the next iteration begins."""
        if self._left is None and not self._places:
            return
        self._give_up_pools()
        if self._places:
            packed = pools.new(self._index)
            with torch.cuda.use_mem_pool(packed, self._index):
                self._move()
            self._packed = packed
            pools.empty_cache()

    def settle(self) -> None:
        """Move the persistent memory of the last iteration to PyTorch's own pool. The later this
        happens, the more gradients are gone that would leave holes in it."""
        self._give_up_pools()
        if self._places:
            self._move()
            self._places = []  # also where there was no room, or another thread computes
            pools.empty_cache()

    def _give_up_pools(self) -> None:
        """Give up the pools, and note the addresses of segments that stay since something in them
        is alive."""
        if self._left is None and self._packed is None:
            return
        for pool in (self._left, self._packed):
            if pool is not None:
                self._note_places(pools.segments(pool))
        del pool
        self._left = self._packed = None
        pools.empty_cache()

    def _note_places(self, segments: Any) -> None:
        self._places += [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in segments
            if segment["active_size"] and segment["device"] == self._index
        ]

    def _move(self) -> None:
        """Move storages in the noted places, as far as there is room, unless a captured graph or
        another thread may use them."""
        if captures.has_captured():
            return
        with contextlib.suppress(RuntimeError), peaks_of(self._index).unseen():
            if pools.move_storages(lambda address: any(address in p for p in self._places)):
                self._places = []
