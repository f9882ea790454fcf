"""Threads in lockstep: at most one of them runs, from one point where it may wait to the next.

This module replaces the parts of the system that a session uses: threads, locks, events, time, poll
and the socket to its broker. The driver chooses the thread that continues. So each order of events
can be tested, with the same result each time.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any


class Killed(BaseException):
    """The thread's process is killed. Others do not see anything that the thread does while it
    unwinds."""


class Process:
    def __init__(self) -> None:
        self.threads: list[Thread] = []
        self.wires: list[Wire] = []
        self.is_alive = True

    def kill(self) -> None:
        self.is_alive = False
        for thread in self.threads:
            if not thread.has_ended:
                thread.go_on(Killed())
        for wire in self.wires:
            wire.close()


class Thread:
    """Wait until the driver lets this thread continue. `is_sending`: it is about to send, and could
    continue."""

    def __init__(self, lockstep: Lockstep, process: Process, work: Callable[[], None]) -> None:
        self._lockstep, self._work = lockstep, work
        self.process = process
        self._can_go_on: Callable[[], bool] = lambda: True
        self._go, self._stops = threading.Semaphore(0), threading.Semaphore(0)
        self._thrown: BaseException | None = None
        self.error: BaseException | None = None  # that it ended with
        self.has_ended = self.is_sending = self.stops_at_sends = False
        process.threads.append(self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return not self.has_ended and self._can_go_on()

    def go_on(self, throw: BaseException | None = None, stops_at_sends: bool = False) -> None:
        """Run the thread until it waits or ends. `throw` is raised where it waits now."""
        self._thrown, self.stops_at_sends = throw, stops_at_sends
        before, self._lockstep.running = self._lockstep.running, self
        self._go.release()
        self._stops.acquire()
        self._lockstep.running = before
        if self.has_ended:
            self._thread.join()

    def wait(self, can_go_on: Callable[[], bool]) -> None:
        self._can_go_on = can_go_on
        self._stops.release()
        self._go.acquire()
        self.check()

    def check(self) -> None:
        """Raise the thrown exception; in a dead process, raise it again and again."""
        thrown, self._thrown = self._thrown, None
        if not self.process.is_alive:
            raise Killed
        if thrown is not None:
            raise thrown

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.check()
            self._work()
        except BaseException as error:
            self.error = error
        self.has_ended = True
        self._stops.release()


class Lockstep:
    """The system of all processes. `now` is their monotonic time, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.running: Thread | None = None  # none: the driver
        self.hidden: set[int] = set()  # descriptors of objects that are still on their way
        self._wires: list[Wire] = []
        # These replace the modules of these names.
        self.time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        self.select = SimpleNamespace(
            poll=lambda: Poll(self), POLLIN=select.POLLIN, POLLRDHUP=select.POLLRDHUP
        )
        self.threading = SimpleNamespace(
            RLock=lambda: Lock(self), Event=lambda: Event(self), Thread=self.thread
        )

    def wait(self, can_go_on: Callable[[], bool]) -> None:
        if self.running is None:
            assert can_go_on()
            return
        self.running.check()
        while not can_go_on():  # again where another thread that could continue as well was first
            self.running.wait(can_go_on)

    def stop_at_send(self) -> None:
        """Stop before each message, since other threads may be faster, or the process may end
        here."""
        if (thread := self.running) is not None:
            thread.check()
            if thread.stops_at_sends:
                thread.is_sending = True
                try:
                    thread.wait(lambda: True)
                finally:
                    thread.is_sending = False

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        self.wait(lambda: self.now >= end)

    def thread(self, target: Callable[[], None], **about: Any) -> SimpleNamespace:
        """Return the id of the calling process."""
        assert self.running is not None
        process = self.running.process
        return SimpleNamespace(start=lambda: Thread(self, process, target))

    def pair(self) -> tuple[Wire, socket.socket]:
        ours, theirs = socket.socketpair()
        wire = Wire(self, ours)
        assert self.running is not None
        self.running.process.wires.append(wire)
        self._wires.append(wire)
        return wire, theirs

    def close(self) -> None:
        for wire in self._wires:
            wire.end()


class Lock:
    """A threading.RLock."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self._owner: Thread | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = float("inf")) -> bool:
        thread, end = self._lockstep.running, self._lockstep.now + timeout
        if blocking:
            self._lockstep.wait(lambda: self._is_free_for(thread) or self._lockstep.now >= end)
        if not self._is_free_for(thread):
            return False
        self._owner = thread
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1

    def _is_owned(self) -> bool:
        return self._depth > 0 and self._owner is self._lockstep.running

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_free_for(self, thread: Thread | None) -> bool:
        return not self._depth or self._owner is thread


class Event(threading.Event):
    def __init__(self, lockstep: Lockstep) -> None:
        super().__init__()
        self._lockstep = lockstep

    def wait(self, timeout: float | None = None) -> bool:
        end = self._lockstep.now + (float("inf") if timeout is None else timeout)
        self._lockstep.wait(lambda: self.is_set() or self._lockstep.now >= end)
        return self.is_set()


class Poll:
    """A select.poll."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self._poll = select.poll()
        self.register = self._poll.register

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """`timeout` is milliseconds."""
        if timeout != 0:
            end = self._lockstep.now + (float("inf") if timeout is None else timeout / 1000)
            self._lockstep.wait(lambda: bool(self._events()) or self._lockstep.now >= end)
        return self._events()

    def _events(self) -> list[tuple[int, int]]:
        hidden = self._lockstep.hidden
        return [event for event in self._poll.poll(0) if event[0] not in hidden]


class Wire(socket.socket):
    """A client's end of a connection. Its descriptor number is not reused while a thread may wait
    for it."""

    def __init__(self, lockstep: Lockstep, end: socket.socket) -> None:
        super().__init__(fileno=end.detach())
        self._lockstep = lockstep
        self._is_over = False
        self._readable = select.poll()
        self._readable.register(super().fileno(), select.POLLIN)

    def recvmsg(self, *sizes: int) -> Any:
        self._lockstep.wait(lambda: self._is_over or bool(self._readable.poll(0)))
        return super().recvmsg(*sizes)

    def sendall(self, data: bytes) -> None:  # type: ignore[override]
        self._lockstep.stop_at_send()
        super().sendall(data)

    def fileno(self) -> int:
        return -1 if self._is_over else super().fileno()

    def close(self) -> None:
        self._is_over = True
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        super().close()
