"""The cost of paging out and in: its rate over that of a plain copy to and from the same
directory.

The tensors are the weights of a transformer with both of Adam's moments. A plain copy writes as
many bytes from one buffer to a file, and reads them into fresh memory. Copies and pages alternate,
so that a change of the machine's pace falls on both; the ratio is the median over the rounds. The
first page-out of a tensor has small pages to give back, and later ones the huge pages that paging
in has made; both are measured. Each step first takes and gives back the memory that it will need,
since a virtual machine has to ask its host for memory that was free for a while.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from measure import Figure, publish

from jupyter_gpushare._core import AllocationCounter, Pager

WIDTH, LAYERS = 768, 2
ROUNDS = 11
STEPS = ("page_out", "page_in", "out_and_in")
NAMES = (*STEPS, *(f"{step}_again" for step in STEPS))
CALL = 4 << 20  # bytes of one system call of the plain copy
DIRECTORY = tempfile.gettempdir()
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
M_MMAP_THRESHOLD = -3  # of mallopt


def tensors() -> list[torch.Tensor]:
    """Return weights and moments, in memory that is fresh from the system."""
    layer = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (WIDTH,)]
    return [torch.ones(shape) for shape in layer for _ in range(LAYERS * 3)]


@contextmanager
def memory(size: int) -> Iterator[memoryview]:
    mapped = mmap.mmap(-1, size, flags=PRIVATE)
    with memoryview(mapped) as view:
        yield view
    mapped.close()


def warm(size: int) -> None:
    """Take and give back as much file cache, and as much memory in huge pages."""
    with (
        tempfile.TemporaryFile(dir=DIRECTORY, buffering=0) as file,
        mmap.mmap(-1, size, flags=PRIVATE) as mapped,
    ):
        mapped.madvise(mmap.MADV_HUGEPAGE)
        mapped[:] = bytes(size)
        with memoryview(mapped) as view:
            for start in range(0, size, CALL):
                file.write(view[start : start + CALL])


def seconds(call: Callable[[], object], size: int) -> float:
    """Return the seconds of a call that takes `size` bytes of memory or of the file cache."""
    warm(size)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def plain_copy(source: memoryview) -> tuple[float, float]:
    """Return seconds to write `source` to a new file, and to read it into fresh memory."""
    size = len(source)
    starts = range(0, size, CALL)
    with tempfile.TemporaryFile(dir=DIRECTORY, buffering=0) as file, memory(size) as target:
        at = file.fileno()
        write = seconds(lambda: [os.pwrite(at, source[i : i + CALL], i) for i in starts], size)
        read = seconds(lambda: [os.preadv(at, [target[i : i + CALL]], i) for i in starts], size)
    return write, read


def page(size: int) -> tuple[float, float, int]:
    """Return seconds to page out and in, and the bytes."""
    said = []
    out = seconds(lambda: said.append(Pager.page_out(DIRECTORY)), size)
    paged = Pager.bytes_out()
    back = seconds(lambda: said.append(Pager.page_in()), size)
    assert said == ["", ""], said
    return out, back, paged


def compare() -> tuple[list[float], int]:
    """Return ratios of one round: first page-out, page-in, and both together; then the
    same again."""
    kept = tensors()
    ratios = []
    size = sum(tensor.nbytes for tensor in kept)
    with memory(size) as source:
        source[:] = bytes(size)
        for _ in range(2):
            write, read = plain_copy(source)
            out, back, paged = page(size)
            pairs = ((write, out), (read, back), (write + read, out + back))
            ratios += [paged / size * copied / moved for copied, moved in pairs]
    return ratios, paged


def main() -> int:
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    torch.set_num_threads(1)
    assert AllocationCounter.install() == ""
    rounds = [compare() for _ in range(ROUNDS)]
    medians = map(statistics.median, zip(*(ratios for ratios, _ in rounds), strict=True))
    return publish(
        "paging",
        [
            Figure("bytes", rounds[0][1] / (1 << 20), "MiB"),
            *(
                Figure(f"{name}_over_copy", median, target=0.8, at_least=True)
                for name, median in zip(NAMES, medians, strict=True)
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
