"""Whoever is at the other end of a connection."""

from __future__ import annotations

from ..protocol import Message


class Peer:
    """A connection, as the service sees it. `uid`, `pid` and `user` are the kernel's word."""

    uid: int
    pid: int
    user: str
    greeted = False
    session: str | None = None

    def send(self, *messages: Message) -> None:
        raise NotImplementedError

    def send_frame(self, frame: bytes) -> None:
        raise NotImplementedError

    def is_behind(self) -> bool:
        """Whether it has not read yet what it was sent."""
        raise NotImplementedError
