"""Peers in this process, for tests that use the service without a socket."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import MAX_SNAPSHOT_BYTES, Frames, ToBroker, decode_from_broker
from jupyter_gpushare.wire.snapshot import Snapshot, in_words

MIB = 1 << 20
GIB = 1 << 30
STRANGER = 54321  # a user id that is neither the superuser's nor the broker's
KEY = "a" * m.KEY_LENGTH
Kind = TypeVar("Kind", bound=m.Message)
Me = TypeVar("Me", bound="Speaker")


class Listener(Peer):
    """Keeps its messages in `heard`. It reads at once, and stops computing when it is lost."""

    def __init__(self, user: str) -> None:
        self.uid, self.pid, self.user = STRANGER, 1, user
        self.heard: list[m.Message] = []
        self.is_open = True
        self._frames = Frames(MAX_SNAPSHOT_BYTES)

    def send(self, *messages: m.Message) -> None:
        self.heard += [one.in_words() if isinstance(one, m.Wait) else one for one in messages]

    def send_frame(self, frame: bytes) -> None:
        for message in map(decode_from_broker, self._frames.feed(frame)):
            self.heard.append(in_words(message) if isinstance(message, Snapshot) else message)

    def send_with(self, message: m.Message, descriptor: int) -> None:
        self.send(message)

    def is_alive(self) -> bool:
        return False

    def is_behind(self) -> bool:
        return False

    def close(self) -> None:
        self.is_open = False

    def heard_of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.heard if isinstance(message, kind)]

    def last(self, kind: type[Kind]) -> Kind:
        """Return the last message of this kind."""
        return self.heard_of(kind)[-1]


class Speaker(Listener):
    """A listener that has said Hello to a service, and sends messages for a test."""

    def __init__(self, service: Service, user: str) -> None:
        super().__init__(user)
        self._service = service
        self.says(m.Hello(m.PROTOCOL))

    def says(self: Me, message: ToBroker, now: float = 0.0) -> Me:
        self._service.handle(self, message, now)
        return self


class LaneUser(Speaker):
    """A session that keeps the last descriptor that came with a message of the kind `keeps`. It
    computes while it `is_there`, even after it is lost."""

    is_owner = True
    keeps: type[m.Message] = m.Message

    def __init__(
        self, service: Service, name: str, ephemeral: int = MIB, user: str = "ada", **fields: Any
    ) -> None:
        super().__init__(service, user)
        self.is_there = True
        self.descriptor = -1
        demand = Demand(0, ephemeral, measured=True)
        self._mine = {"name": name, "demand": demand, "handoff_slot": name, "key": KEY, **fields}
        self.opens()

    def opens(self, **fields: Any) -> None:
        self.says(m.Open(id=self._mine["name"], device="host", **self._mine, **fields))

    def send_with(self, message: m.Message, descriptor: int) -> None:
        if isinstance(message, self.keeps):
            self.close()
            self.descriptor = os.dup(descriptor)
        self.send(message)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    end = close

    def is_alive(self) -> bool:
        return self.is_there
