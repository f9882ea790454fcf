"""Chunks: the memory of a GPU's lane consists of them.

Only a process that uses the GPU can make a chunk, and the broker must not use it. So sessions make
the chunks that a lane lacks and give their descriptors to the broker, which gives them to the
others (fd_channel.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

SMALLEST_BYTES = 2 << 20  # the smallest piece that a GPU's driver maps
MOST = 4096  # chunks of a device, so that a broker has enough descriptors for its lanes


class Batch(NamedTuple):
    """Chunks of one lane memory; `descriptors` are open, and the receiver closes them."""

    memory: int
    first: int
    descriptors: list[int]


def chunk_bytes(capacity: int) -> int:
    """Return the size of a device's chunks: the least power of two with which it has at
    most MOST."""
    size = SMALLEST_BYTES
    while size * MOST < capacity:
        size *= 2
    return size


def count(size: int, chunk: int) -> int:
    """Return how many chunks of `chunk` bytes `size` bytes take."""
    return -(-size // chunk)


def close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class KeptChunks:
    """The broker's descriptors of one lane's memory, which ends when no session maps it either."""

    def __init__(self, chunk: int) -> None:
        self.chunk_bytes = chunk
        self.descriptors: list[int] = []

    def shrink(self, bytes: int) -> None:
        """Close the chunks above `bytes`."""
        rest = self.descriptors[count(bytes, self.chunk_bytes) :]
        del self.descriptors[len(self.descriptors) - len(rest) :]
        close(rest)

    def __del__(self) -> None:
        close(self.descriptors)
