"""Whoever is at the other end of a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..protocol import Message


class Peer(ABC):
    """A connection, as the service sees it. `uid`, `pid` and `user` are the kernel's word."""

    uid: int
    pid: int
    user: str
    greeted = False
    session: str | None = None
    memory = 0  # number of the lane memory whose descriptor it was sent last

    @abstractmethod
    def send(self, *messages: Message) -> None: ...

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
        """Whether it has not read yet what it was sent."""
