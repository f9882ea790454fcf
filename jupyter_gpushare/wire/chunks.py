"""Chunks: what the memory of a GPU's lane is made of.

Only a process that uses the GPU can make one, and the broker must not; so sessions make what a lane
has not got yet and give the broker the descriptors, and it gives them to the others (channel.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

SMALLEST_BYTES = 2 << 20  # what a GPU's driver maps at least
MOST = 4096  # chunks that a device has, so that a broker has descriptors enough for its lanes


class Batch(NamedTuple):
    """`descriptors` are open, and the receiver's to close."""

    memory: int
    first: int
    descriptors: list[int]


def chunk_bytes(capacity: int) -> int:
    """The size of a device's chunks: the least power of two of which it has not too many."""
    size = SMALLEST_BYTES
    while size * MOST < capacity:
        size *= 2
    return size


def count(size: int, chunk: int) -> int:
    """Chunks of `chunk` bytes that `size` bytes take."""
    return -(-size // chunk)


def close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Kept:
    """The memory of one lane as the broker keeps it; it ends when no session maps it either."""

    def __init__(self, chunk: int) -> None:
        self.chunk_bytes = chunk
        self.descriptors: list[int] = []

    def shrink(self, bytes: int) -> None:
        """Let go of what lies above `bytes`."""
        rest = self.descriptors[count(bytes, self.chunk_bytes) :]
        del self.descriptors[len(self.descriptors) - len(rest) :]
        close(rest)

    def __del__(self) -> None:
        close(self.descriptors)
