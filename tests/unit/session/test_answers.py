"""A session handles messages that a broker sends together with an answer like those that come
afterwards."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.framing import ToBroker

SECONDS = 60.0


class Script:
    """A broker of one client at a time, which requests a page-out in one piece with the second
    Opened."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.is_answered = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for pieces in ((), (m.PageOut(),)):
            connection, _ = self._listener.accept()
            with connection:
                for message in heard(connection):
                    if isinstance(message, m.Hello):
                        connection.sendall(framing.encode(m.Welcome(m.PROTOCOL, "test", 1)))
                    elif isinstance(message, m.Open):
                        answers = (m.Opened(message.id, "host", 1 << 30), *pieces)
                        connection.sendall(b"".join(map(framing.encode, answers)))
                    elif isinstance(message, m.Busy):
                        break  # the connection is lost
                    elif isinstance(message, (m.PagedOut, m.StaysIn)):
                        self.is_answered.set()
                    elif isinstance(message, m.Close):
                        connection.sendall(framing.encode(m.Done()))

    def close(self) -> None:
        self._listener.close()


def heard(connection: socket.socket) -> Iterator[ToBroker]:
    frames = framing.Frames()
    while data := connection.recv(1 << 16):
        yield from map(framing.decode_from_client, frames.feed(memoryview(data)))


def test_a_page_out_that_comes_with_the_answer_to_open_is_not_forgotten(
    settings: Settings,
) -> None:
    with closing(Script(settings.socket)) as script:
        session = Session(msgspec.structs.replace(settings, start_broker=False), name="ours")
        session.open()
        session.cell_ends()
        assert script.is_answered.wait(SECONDS)
        session.close()
