"""A lock that its holder keeps for a quantum, whatever it computes: the way of nvshare, on the
device `host`.

Processes that want to compute stand in one queue, first come, first served. When the quantum ends,
the holder is told to drop the lock, whether or not another process waits. It does so before its
next computation, here the next layer of a model, forward or backward, and so in the middle of an
iteration. A holder that has computed nothing for a while gives the lock back.

One part is missing because the device host does not have it: nvshare's programs allocate managed
memory, and the driver pages out what does not fit. Here all of it stays in place.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

REQUEST, RELEASED, GRANTED, DROP = b"R", b"L", b"G", b"D"  # one byte is one message


class Line:
    """Decides: the head of the queue has the lock, and is told once when its quantum has ended."""

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._waiting: deque[socket.socket] = deque()
        self._holder: socket.socket | None = None
        self._until = 0.0
        self._told = False

    def take(self, client: socket.socket, word: bytes, now: float) -> None:
        """Handle a message of a client; no bytes at all mean that it is gone."""
        if word == REQUEST:
            self._waiting.append(client)
        elif client is self._holder:
            self._holder = None
        elif not word and client in self._waiting:
            self._waiting.remove(client)
        if self._holder is None and self._waiting:
            self._holder = self._waiting.popleft()
            self._until, self._told = now + self._quantum, False
            _tell(self._holder, GRANTED)

    def look(self, now: float) -> float | None:
        """Return seconds until the quantum ends; None where no quantum is running."""
        if self._holder is None or self._told:
            return None
        if now < self._until:
            return self._until - now
        self._told = True
        _tell(self._holder, DROP)
        return None


def _tell(client: socket.socket, word: bytes) -> None:
    with suppress(OSError):  # it is gone, and the queue will learn so when it reads
        client.sendall(word)


def serve(listener: socket.socket, quantum: float) -> None:
    line = Line(quantum)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(line.look(time.monotonic())):
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                else:
                    _hear(key.fileobj, line, selector)


def _hear(client: Any, line: Line, selector: selectors.BaseSelector) -> None:
    try:
        words = client.recv(64)
    except OSError:
        words = b""
    for word in words:
        line.take(client, bytes([word]), time.monotonic())
    if not words:
        line.take(client, b"", time.monotonic())
        selector.unregister(client)
        client.close()


@contextmanager
def server(path: Path, quantum: float) -> Iterator[None]:
    """Run in a process of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = get_context("fork").Process(target=serve, args=(listener, quantum), daemon=True)
        process.start()
        try:
            yield
        finally:
            process.terminate()
            process.join()


class Lock:
    """The lock of this process. `pass_through` is called before anything is computed.

    A process that has computed nothing for `layer_seconds` is in no layer now, and drops the lock
    when it is told; after `idle_seconds` it gives the lock back.
    """

    def __init__(self, path: Path, layer_seconds: float, idle_seconds: float) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(path))
        self._layer_seconds = layer_seconds
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._wanted = self._held = self._drop = False
        self._last = 0.0  # time of the last computation
        threading.Thread(target=self._listen, daemon=True).start()

    def pass_through(self) -> None:
        with self._changed:
            if self._drop:
                self._release()
            while not self._held:
                if not self._wanted:
                    self._wanted = True
                    self._line.sendall(REQUEST)
                self._changed.wait()
            self._last = time.monotonic()

    def close(self) -> None:
        self._line.close()

    def _release(self) -> None:
        self._held = self._drop = False
        self._line.sendall(RELEASED)

    def _listen(self) -> None:
        self._line.settimeout(self._layer_seconds)
        while True:
            try:
                word = self._line.recv(1)
            except TimeoutError:
                word = b"-"
            except OSError:
                return
            if not word:
                return
            with self._changed:
                self._take(word)

    def _take(self, word: bytes) -> None:
        if word == GRANTED:
            self._held, self._wanted, self._last = True, False, time.monotonic()
            self._changed.notify_all()
        elif word == DROP:
            self._drop = True
        idle = time.monotonic() - self._last
        if self._held and idle > (self._layer_seconds if self._drop else self._idle_seconds):
            self._release()


def gate(lock: Lock) -> None:
    """Let every layer and every optimiser's step of this process pass through the lock."""
    import warnings

    from torch.nn.modules import module
    from torch.optim import optimizer

    warnings.filterwarnings("ignore", "Full backward hook")  # that inputs need no gradient is fine
    module.register_module_forward_pre_hook(lambda *_: lock.pass_through())
    module.register_module_full_backward_pre_hook(lambda *_: lock.pass_through())
    optimizer.register_optimizer_step_pre_hook(lambda *_: lock.pass_through())
