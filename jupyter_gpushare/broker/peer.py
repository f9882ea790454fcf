"""The other end of a connection."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..wire.fd_channel import Channel
from ..wire.messages import Message


class Peer(ABC):
    """A connection, as the service sees it. `uid` and `pid` come from the operating system; Only
    `user` and `groups` tell which user it stands for; `user` is empty until the user is known."""

    uid: int
    pid: int
    user: str
    groups: frozenset[str] = frozenset()
    is_owner = False  # whether it has all permissions
    may_issue_tokens = False  # whether it may issue one-time tokens for kernels of the same user
    issuer: Peer | None = None  # the server whose one-time token it came with
    greeted = False
    session: str | None = None
    memory = 0  # the number of the lane memory that it was sent last
    chunks = 0  # the chunks that it has of that memory
    ledger = 0  # the number of the lane memory whose ledger it was sent last
    room = -1  # the bytes of the last Room that it was sent; negative: none yet
    page_ins = 0  # the PageIns that it was sent since its session was opened
    channel: Channel | None = None  # for chunks, in both directions

    @abstractmethod
    def send(self, *messages: Message) -> None: ...

    def send_soon(self, message: Message) -> None:
        """Send after this event, since the receiver's answer needs the processor that the event
        still uses."""
        self.send(message)

    @abstractmethod
    def send_frame(self, frame: bytes) -> None: ...

    @abstractmethod
    def send_with(self, message: Message, descriptor: int) -> None:
        """Send a message and a file descriptor with it."""

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the process may still compute, connected or not."""

    @abstractmethod
    def is_behind(self) -> bool:
        """Whether it still has unread messages."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. The service treats it as a lost connection."""

    def open_channel(self, message: Message) -> None:
        """Send a message. With the first one goes the other end of a new channel for chunks."""
        if self.channel is not None:
            self.send(message)
            return
        self.channel, theirs = Channel.pair()
        self.channel.set_blocking(False)
        self.send_with(message, theirs.fileno())
        theirs.close()

    def send_chunks(self, memory: int, first: int, descriptors: Sequence[int]) -> None:
        """Send chunks of the memory of a lane; the first one has the number `first`.

        If they do not arrive, the session makes its own.
        """
        assert self.channel is not None
        with contextlib.suppress(OSError):  # it does not read, or is gone
            self.channel.send(memory, first, descriptors)
