"""The worst neighbour that a lane allows: whenever it has the turn, it overwrites everything."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.demand import Demand

# Runs in the notebook: at each boundary it waits until the neighbour wants the turn, so that there
# is a context switch at every one, and notes how many bytes of the lane the iteration had.
CHANGE_OVER = """
import json, select
from jupyter_gpushare import _core
from jupyter_gpushare.client.notebook.sharing import current

session, footprints = current(), []

def boundary(end_of_iteration=session.boundary):
    recent = session.memory.estimator.recent
    footprints.extend(iteration.footprint for iteration in list(recent)[-1:])
    assert _core.Lane.is_valid() == ""
    while session.holding and session._turn.asked is None:
        with session._link.lock:
            session._link.client.has_news() or select.select([session._link.client], [], [])
            session._turn.look()
    with session._link.lock:
        end_of_iteration()

session.boundary = boundary
"""
LOOK_SECONDS = 0.01
TELL = "print(json.dumps(footprints)); footprints.clear()"


class Noise(WholeProcess):
    """Memory whose content is lost: 0xFF in all of the lane, NaN to a reader of floats."""

    how = "all of the lane is overwritten"

    def __init__(self, ephemeral: int) -> None:
        self.ephemeral = ephemeral
        self.overwrites = 0
        self.has_news = True
        self._lane: tuple[LaneMemory | None, int] = (None, 0)

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        self._lane = memory, size  # its descriptor is open while a process has it
        return ""

    def close_lane(self) -> None:
        """Close the lane's descriptor; a closed session is in a cycle, so it is collected late."""
        self._lane = None, 0

    def begin(self) -> None:
        memory, size = self._lane
        if memory is not None and size:
            assert os.pwrite(memory.descriptor, b"\xff" * size, 0) == size
            self.overwrites += 1

    def demand(self) -> Demand:
        self.has_news = False
        return Demand(0, self.ephemeral, measured=True)


class Scribbler:
    """A session, in a thread of this process, that asks for a turn as soon as it has given the
    last one back. It comes before all others while it waits, and after all others once it has the
    turn."""

    def __init__(self, settings: Settings, ephemeral: int = 1) -> None:
        self.memory = Noise(ephemeral)
        self.settings = settings
        self._session = Session(settings, name="scribbler", device="host")
        self._session.memory = self.memory
        self._session.open()
        self._is_over = threading.Event()
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._scribble)
        self._thread.start()

    @property
    def overwrites(self) -> int:
        """Return how often a lane that has any bytes was overwritten."""
        return self.memory.overwrites

    def take_turns(self, ephemeral: int = 1) -> None:
        """A scribbler with a session that needs `size` bytes, and leaves after it has had some."""
        other = Session(self.settings, name="other", device="host")
        other.memory = memory = Noise(ephemeral)
        other.open()
        before = self.overwrites
        while self.overwrites < before + 3:
            other.enter()
            other.boundary()
        other.leave()  # otherwise its living process may keep the lane
        other.close()
        memory.close_lane()

    def _scribble(self) -> None:
        with contextlib.suppress(BrokerUnavailable):  # when it closes
            while not self._is_over.is_set():
                self._session.change(priority=1)
                self._session.enter()
                self.memory.begin()
                self._session.boundary()
                self._session.change(priority=-1)
                self._give_back_when_asked()

    def _give_back_when_asked(self) -> None:
        """A boundary does not wait for the lock, which the keeper has now and then; but here there
        is no next boundary that would find a message of the meantime."""
        while self._session.holding and not self._is_over.is_set():
            with self._session._link.lock:
                self._session.boundary()
            if self._session.holding:
                self._await_news()

    def _await_news(self) -> None:
        """The keeper of the session may have taken the message, and given the turn back."""
        with contextlib.suppress(ValueError, TypeError):  # the connection has just been lost
            select.select([self._session._link.client, self._woken], [], [], LOOK_SECONDS)

    def close(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        os.write(self._wake, b"!")
        self._session.close()
        self._thread.join()
        self.memory.close_lane()
        os.close(self._wake)
        os.close(self._woken)
