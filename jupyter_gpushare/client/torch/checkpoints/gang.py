"""The ranks of a job: they save and leave together, at the same iteration."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ....errors import InvalidValue
from ...checkpoints.store import say

MOST_SECONDS = 1.0  # how long a rank waits for a thread of gloo


class Gang:
    """All ranks of torch.distributed, or this process alone. They agree over a gloo
    group of its own, beside the traffic of GPUs."""

    def __init__(self) -> None:
        is_one_of_several = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if is_one_of_several else 1
        self.rank = dist.get_rank() if is_one_of_several else 0
        ranks = int(os.environ.get("WORLD_SIZE", "1")) if "GPUSHARE_JOB" in os.environ else 1
        if self.size < ranks:
            raise InvalidValue(
                f"this job has {ranks} ranks, which cannot agree when to save: call"
                " torch.distributed.init_process_group() before, or submit it with nodes=1"
            )
        self._group = dist.new_group(backend="gloo") if self.size > 1 else None
        self._told = torch.empty(0)  # kept: older versions need Python only for the last reference

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def most(self, values: Sequence[float]) -> list[float]:
        """Return the maximum over all ranks of each value. All ranks call this."""
        if self.size == 1:
            return list(values)
        self._told = told = torch.tensor(values, dtype=torch.float64)
        references = sys.getrefcount(told)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        # A thread of gloo releases the tensor a little later. It needs Python for that, and would
        # abort a process that has begun to end by then, such as a rank that has saved and leaves.
        until = time.monotonic() + MOST_SECONDS
        while sys.getrefcount(told) > references and time.monotonic() < until:
            time.sleep(0.0005)
        return [float(value) for value in told]

    def gathered(self, mine: Any) -> list[Any]:
        """Return the values of all ranks, in order, to the rank that leads; nothing to others."""
        if self.size == 1:
            return [mine]
        all_of_them: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(mine, all_of_them, group=self._group)
        return all_of_them or []

    def mine(self, ranks: Sequence[Any]) -> Any:
        """Return the saved value of this rank; None if there were more or fewer ranks."""
        if len(ranks) == self.size:
            return ranks[self.rank]
        say(
            f"this job was saved by {len(ranks)} ranks, and resumes with {self.size}: it has the"
            " same weights, but other random numbers and other batches"
        )
        return None
