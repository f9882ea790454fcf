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

    @abstractmethod
    def send(self, *messages: Message) -> None: ...

    @abstractmethod
    def send_frame(self, frame: bytes) -> None: ...

    @abstractmethod
    def is_behind(self) -> bool:
        """Whether it has not read yet what it was sent."""
