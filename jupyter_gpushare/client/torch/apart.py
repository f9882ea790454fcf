"""The memory of the first iterations on a GPU, which run outside of the lane.

They have a pool of their own. What persists from then on, as an optimiser's state, moves out of it
before the next one: otherwise it would keep segments that have room for all of an iteration.
Import this after torch.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from . import captures, pools
from .peaks import peaks_of

MOST = 8  # iterations that have such a pool: later ones leave little behind, and moving takes time


class Apart:
    """The pool of one such iteration of `cuda:index`."""

    def __init__(self, index: int) -> None:
        captures.watch()
        self._index = index
        self._to_come = MOST
        self._pool: Any = None  # of the open iteration
        self._left: Any = None  # of the last one
        self._places: list[range] = []  # addresses of segments that it has left

    def begin(self) -> None:
        self.settle()
        if self._to_come:
            self._to_come -= 1
            self._pool = pools.new(self._index)
            pools.begin_routing(self._index, self._pool)

    def end(self) -> None:
        if self._pool is not None:
            pools.end_routing(self._index, self._pool)
            self._left, self._pool = self._pool, None

    def release(self) -> None:
        """Give up the pool of the last iteration. Segments in which something is alive stay."""
        if self._left is None:
            return
        pool, self._left = self._left, None
        self._places += [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot(pool.id)
            if segment["active_size"]
        ]
        del pool
        pools.empty_cache()

    def settle(self) -> None:
        """Move what persists of the last iteration, unless a captured graph may use it. The later
        that is, the more gradients are gone, which would leave holes between what persists."""
        self.release()
        places, self._places = self._places, []
        if not places or captures.has_captured():
            return
        with contextlib.suppress(RuntimeError), peaks_of(self._index).unseen():  # or without room
            torch.cuda.synchronize(self._index)
            pools.move_storages(lambda address: any(address in place for place in places))
            torch.cuda.synchronize(self._index)
        pools.empty_cache()
