"""The channel for chunks between a session and the broker.

It has a socket of its own, since there are many chunks, and asyncio loses descriptors that come
with its bytes.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from ..errors import UNREADABLE
from .chunks import Batch, close

PER_BATCH = 250  # of the 253 descriptors that the kernel passes at once
MAX_LABEL_BYTES = 256
ANCILLARY_BYTES = socket.CMSG_SPACE(PER_BATCH * array("i").itemsize)
AT_ONCE = 64  # messages that are read in one go; no lane has more batches than that
# pause while too many descriptors are on their way, until the other end has read some
FULL_PAUSE_SECONDS = 0.01


class Label(msgspec.Struct, frozen=True):
    """The label of a batch: its chunks are those of the lane memory `memory` from number `first`
    on."""

    memory: int
    first: int


class Channel:
    """One end, for one thread at a time. `is_over` once the other end is closed."""

    def __init__(self, end: socket.socket) -> None:
        self.is_over = False
        self._socket = end
        self._early: list[Batch] = []  # for memory whose Grant is still to come

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, memory: int, first: int, descriptors: Sequence[int]) -> None:
        """Send descriptors, which the caller still owns. Raises OSError if the other end does not
        read."""
        for start in range(0, len(descriptors), PER_BATCH):
            label = msgspec.json.encode(Label(memory, first + start))
            self._send_some(label, descriptors[start : start + PER_BATCH])

    def _send_some(self, label: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [label], list(descriptors))
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or not self._socket.getblocking():
                    raise
            time.sleep(FULL_PAUSE_SECONDS)

    def received(self) -> Iterator[Batch]:
        """Yield the batches that have come, without waiting, from at most AT_ONCE messages. A
        message that is no batch is left out."""
        with contextlib.suppress(OSError):  # no more messages, or the other end is closed
            for _ in range(AT_ONCE):
                label, descriptors = self._receive()
                if batch := _batch(label, descriptors):
                    yield batch
                    continue
                close(descriptors)
                if not label:
                    self.is_over = True
                    return

    def received_for(self, memory: int) -> Iterator[Batch]:
        """Yield the batches for that memory. Batches for older memory are dropped, and those for
        newer memory are kept."""
        come = [*self._early, *self.received()]
        self._early = [batch for batch in come if batch.memory > memory]
        for batch in come:
            if batch.memory == memory:
                yield batch
            elif batch.memory < memory:
                close(batch.descriptors)

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return a message and its descriptors; the message is empty if the other end is closed.
        Raises BlockingIOError if nothing has come."""
        flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        data, ancillary, _, _ = self._socket.recvmsg(MAX_LABEL_BYTES, ANCILLARY_BYTES, flags)
        descriptors = array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        return data, list(descriptors)

    def set_blocking(self, blocks: bool) -> None:
        self._socket.setblocking(blocks)

    def close(self) -> None:
        self._socket.close()
        for batch in self._early:
            close(batch.descriptors)
        self._early.clear()


def _batch(label: bytes, descriptors: list[int]) -> Batch | None:
    try:
        where = msgspec.json.decode(label, type=Label)
    except UNREADABLE:
        return None
    return Batch(where.memory, where.first, descriptors)
