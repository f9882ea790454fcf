"""The keeper: a thread that looks after a session's link while user code computes.

The keeper notices a hang-up of the connection, so that a restarted broker learns at once which
session has the turn, even while user code computes for minutes. It also gives the turn back between
two iterations, when user code may do something else for minutes; and between cells, when it is
used no more, such as after a task of an event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from ...errors import ConnectionLost, ProtocolError
from .lane_use import LaneUse
from .link import LAST_RETRY_SECONDS, Link, pauses
from .residency import Residency
from .turn import Turn
from .usage import Owner

HANG_UP_LOOK_MILLISECONDS = 5_000  # a descriptor may have been closed and reused unnoticed
IDLE_LOOK_MILLISECONDS = 50  # to see that the turn is wanted when no boundary checks it
LEFT_SECONDS = 1.0  # without an iteration, between cells, before a turn is given back unasked
NO_ROOM_RETRY_SECONDS = 1.0  # after survivors found no room
END_SECONDS = 2.0  # how long the end of a process waits for keepers


class Keeper:
    """The keeper of one link. While an iteration runs, or a thread waits for a turn, the keeper
    leaves messages to that thread."""

    def __init__(
        self, owner: Owner, link: Link, lane_use: LaneUse, turn: Turn, residency: Residency
    ) -> None:
        self._owner = owner
        self._link = link
        self._lane_use = lane_use
        self._turn = turn
        self._residency = residency
        self._next_try = 0.0  # when to try again to give the turn back
        # The turn and the iterations until now, and since when they have been the same.
        self._seen, self._seen_at = (0, 0), 0.0
        self._ends = threading.Event()
        self._wake: socket.socket | None = None  # a socket pair that ends a sleep of the thread
        self._woken: socket.socket | None = None

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system can start no further thread."""
        self._wake, self._woken = socket.socketpair()
        _kept.add(self)
        try:
            threading.Thread(target=self._keep, name="gpushare-keeper", daemon=True).start()
        except RuntimeError:
            _kept.discard(self)
            self.close()
            raise

    def wake(self) -> None:
        if self._wake is not None:
            with contextlib.suppress(OSError):  # the keeper has ended
                self._wake.send(b"!")

    def end(self) -> None:
        self._ends.set()
        self.wake()

    def close(self) -> None:
        """Close the sockets; only where the thread does not exist, as in a forked child."""
        for end in (self._wake, self._woken):
            if end is not None:
                end.close()

    def _keep(self) -> None:
        """Sleep until the connection hangs up and restore it, until the session closes."""
        try:
            while not self._ends.is_set():
                if not self._is_looked_after(self.is_woken):
                    self._restore()
        finally:
            self._link.drop_if(self._link.client)  # the session does not while another thread waits
            self.close()
            _kept.discard(self)

    def _restore(self) -> None:
        for pause in pauses():
            if self._ends.is_set() or self._is_looked_after(self._link.restored_aside):
                return
            self._ends.wait(pause)

    def _is_looked_after(self, look: Callable[[], bool]) -> bool:
        """Return the result of `look`; False after any error, so that the keeper tries again.
        Without the keeper nothing restores a connection while user code computes."""
        try:
            return look()
        except Exception as error:  # nothing above in this thread would catch it
            self._link.note_trouble(f"{type(error).__name__}: {error}")
            self._ends.wait(LAST_RETRY_SECONDS)
            return False

    def is_woken(self) -> bool:
        """Sleep; return False if the connection hung up meanwhile."""
        self._residency.look_between_cells()  # `poll` does not see what came with an answer
        poll = select.poll()
        with self._link.lock:
            client, woken = self._link.client, self._woken
            descriptor = -1 if client is None else client.fileno()
            if descriptor < 0 or woken is None:  # none, or just closed by another thread
                return False
            news = select.POLLIN if self._residency.is_heard_by_keeper else 0
            poll.register(descriptor, select.POLLRDHUP | news)
            poll.register(woken, select.POLLIN)
        events = dict(poll.poll(self._look_milliseconds()))
        if events.get(descriptor, 0) & ~select.POLLIN:
            self._link.drop_if(client)
            return False
        if events.get(woken.fileno()):
            woken.recv(64)
        elif events:
            self._residency.look_between_cells()
        self._look_between_iterations()
        return self._link.client is client

    def _look_milliseconds(self) -> int:
        """Return the longest sleep. While a cell runs, messages do not wake the keeper: it would
        compete for the interpreter with the thread that finds the same message at its boundary."""
        if self._residency.busy or self._turn.asked:
            return IDLE_LOOK_MILLISECONDS
        return int(1000 * LEFT_SECONDS) if self._turn.holding else HANG_UP_LOOK_MILLISECONDS

    def _look_between_iterations(self) -> None:
        """Between iterations, take messages and give the turn back if it is wanted: user code may
        do something else for minutes. This does not wait for locks, since a thread that has one
        begins an iteration, or ends one and looks itself."""
        if self._residency.returning or time.monotonic() < self._next_try:
            return
        if self._owner.entering.acquire(blocking=False):
            try:
                if self._link.lock.acquire(blocking=False):
                    try:
                        self._look()
                    finally:
                        self._link.lock.release()
            finally:
                self._owner.entering.release()

    def _look(self) -> None:
        self._turn.note_gone()
        try:
            if self._turn.holding:
                self._give_back_if_wanted()
            elif not self._owner.inside:
                self._turn.look()
        except (ConnectionLost, ProtocolError):
            self._link.drop()
        if self._turn.holding and self._lane_use.keeps_survivors:
            self._next_try = time.monotonic() + NO_ROOM_RETRY_SECONDS

    def _give_back_if_wanted(self) -> None:
        is_left = self._is_left()
        if self._is_due(is_left):
            self._turn.look()
            if (is_left or self._turn.asked is not None) and self._turn.holding:
                self._turn.give_back()

    def _is_left(self) -> bool:
        """Whether no cell runs, so that the end of none gives the turn back, and no iteration has
        ended for a while. A thread or a task that trains on requests the next turn."""
        now, seen = time.monotonic(), (self._turn.number, self._owner.iterations)
        if self._residency.busy or seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now >= self._seen_at + LEFT_SECONDS

    def _is_due(self, is_left: bool) -> bool:
        """Whether the turn is wanted or left, no iteration is open any more, and survivors may
        move."""
        if not (is_left or self._turn.asked or self._link.connected().has_news()):
            return False
        if self._owner.inside:
            self._owner.close_if_idle()
        memory = self._owner.memory
        return not self._owner.inside and (not memory.survivors() or memory.may_move())


_kept: set[Keeper] = set()  # the keepers with a running thread


def _end_keepers() -> None:
    """End all keepers at the end of the process. Later, Python would end a thread that asks for the
    GIL in the middle of its stack, which aborts the process if a C++ frame is on that stack."""
    end = time.monotonic() + END_SECONDS
    for keeper in tuple(_kept):
        keeper.end()
    while _kept and time.monotonic() < end:
        time.sleep(0.001)


os.register_at_fork(after_in_child=_kept.clear)
atexit.register(_end_keepers)
