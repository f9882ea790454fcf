"""This process's part of a lane on a GPU: which chunks it has, and how much of them it uses.

This module does not depend on PyTorch. No data outlives a turn in chunks that several processes
share, so a chunk that two sessions make twice costs memory, but no session loses a byte.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from .... import _core
from ....wire import chunks
from ....wire.fd_channel import PER_BATCH, Channel

if TYPE_CHECKING:
    from ....wire.client import LaneMemory

WINDOW_OF_CAPACITY = 2  # survivors occupy addresses of the lane, but none of its bytes
TRIES = 40  # to get memory, while other processes may still be releasing theirs
PAUSE_SECONDS = 0.05  # between tries


class CudaLane:
    """The part of the GPU with this `index` in this process. A method that returns a string returns
    an empty one on success, or the sentence that says why it failed."""

    def __init__(self, index: int, capacity: int) -> None:
        self.chunk_bytes = chunks.chunk_bytes(capacity)
        self.size = 0
        self.memory: LaneMemory | None = None
        self.trouble = _core.CudaLane.expect(index, WINDOW_OF_CAPACITY * capacity, self.chunk_bytes)

    def use(self, memory: LaneMemory, size: int) -> str:
        """Use `size` bytes of that memory. Nothing of this process may be alive in the lane."""
        if memory.channel is None:
            return "the broker has no chunks for lanes"
        if self.is_using(memory, size):
            return ""
        return (
            self.trouble
            or _core.CudaLane.open()
            or self._change_to(memory)
            or self._take(memory.number, memory.channel)
            or self._make(memory, chunks.count(size, self.chunk_bytes))
            or self._resize(size)
        )

    def is_using(self, memory: LaneMemory, size: int) -> bool:
        """Whether the lane is `size` bytes of that memory. After a restart of the broker it is not:
        the new broker numbers its memory again, and has no chunks of this process."""
        return memory is self.memory and size == self.size

    def trim(self, size: int) -> str:
        """Release the part of the memory above `size` bytes. Nothing of this process may be alive
        in the lane, unless the lane is no larger than that."""
        kept = chunks.count(size, self.chunk_bytes)
        trouble = self._resize(size) if size < self.size else ""
        return trouble or _core.CudaLane.attach_chunks(kept, [])

    def _change_to(self, memory: LaneMemory) -> str:
        if memory is self.memory:
            return ""
        trouble = _core.CudaLane.detach()
        if not trouble:
            self.memory, self.size = memory, 0
        return trouble

    def _resize(self, size: int) -> str:
        trouble = _core.CudaLane.attach(size)
        self.size = 0 if trouble else size
        return trouble

    def _take(self, number: int, channel: Channel) -> str:
        """Attach the chunks that other processes have made."""
        trouble = ""
        for batch in channel.received_for(number):
            trouble = trouble or self._attach(batch.first, batch.descriptors)
            chunks.close(batch.descriptors)
        return trouble

    def _make(self, memory: LaneMemory, wanted: int) -> str:
        """Make the chunks that do not exist yet."""
        trouble = ""
        while not trouble and (there := _core.CudaLane.attached_chunks()) < wanted:
            made = _made(min(wanted - there, PER_BATCH) * self.chunk_bytes)
            if isinstance(made, str):
                return made
            trouble = self._attach(there, made.descriptors)
            if not trouble and memory.channel is not None:
                with contextlib.suppress(OSError):  # without a broker the chunks are not shared
                    memory.channel.send(memory.number, there, made.descriptors)
        return trouble

    def _attach(self, first: int, descriptors: list[int]) -> str:
        end = first * self.chunk_bytes
        if self.size > end and (trouble := self._resize(end)):
            return trouble
        return _core.CudaLane.attach_chunks(first, descriptors)


def _made(size: int) -> _core.CudaLaneMemory | str:
    for _ in range(TRIES - 1):
        with contextlib.suppress(RuntimeError):
            return _core.CudaLaneMemory(size)
        time.sleep(PAUSE_SECONDS)
    try:
        return _core.CudaLaneMemory(size)
    except RuntimeError as error:
        return str(error)
