"""The physical memory that a training needs, measured in a process of its own that shares nothing.

`persistent` is the memory of the process at a boundary, once libc has given free memory back: the
interpreter, what the libraries made at their first use, and the tensors that live on. `ephemeral`
is the exact memory that tensors take on top of it within one iteration: no way to share can do with
less.

Both leave the libraries' code out. It is in the page cache, once for the whole machine, and its
part of a process's PSS depends on which other processes have it loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from process import command

ITERATIONS = 5  # in the first few the optimiser and the libraries allocate what they retain


class Needs(NamedTuple):
    """A demand, in bytes."""

    persistent: int
    ephemeral: int


def anonymous_bytes(pid: int | str) -> int:
    """Return the PSS of a process's own memory; not of files, nor of the memory of a lane."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        (line,) = (line for line in rollup if line.startswith("Pss_Anon:"))
    return int(line.split()[1]) << 10


def needs(model: str) -> Needs:
    """Measure one of the models."""
    run = subprocess.run(
        command("lanes.needs", model), stdout=subprocess.PIPE, text=True, check=True
    )
    return Needs(*json.loads(run.stdout))


def measure(model: str) -> Needs:
    from models import TRAININGS

    from jupyter_gpushare import _core

    reason = _core.AllocationCounter.install()
    assert not reason, reason
    iterate = TRAININGS[model]()
    for _ in range(ITERATIONS):
        _core.AllocationCounter.take_peak()
        iterate()
    live, peak = _core.AllocationCounter.take_peak()
    _core.return_free_memory()
    return Needs(anonymous_bytes("self"), peak - live)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
