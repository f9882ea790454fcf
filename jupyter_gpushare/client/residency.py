"""Where the memory that persists between iterations is: on the device, or paged out.

A session whose cells are announced is paged out between them when others need the room. Where that
lasts, the session *rests*: it has no place at the broker until its next cell, and nothing of it
counts there. All of it is under the link's lock.
"""

from __future__ import annotations

import contextlib
import time

from ..errors import ConnectionLost, GpuShareError, ProtocolError
from ..wire.messages import Busy, Message, PagedOut, PageIn, PageOut, Rest, StaysIn
from .link import Link, pauses
from .placement import Placement
from .process_groups import Membership
from .turn import Turn
from .usage import Owner, Usage

ON_GPU = "a cell runs, and a GPU cannot wait for memory that another thread of it may use"
JOINS = "it computes in the turns of another member of its process group"
UNCOUNTED_BYTES = 1 << 20  # a session with less on the device may leave it there and rest


class Residency:
    """Of one session. `directory` is where the files of what is paged out lie; empty: a cache."""

    def __init__(
        self,
        owner: Owner,
        link: Link,
        usage: Usage,
        turn: Turn,
        placement: Placement,
        group: Membership,
        directory: str,
    ) -> None:
        self._owner = owner
        self._link = link
        self._usage = usage
        self._turn = turn
        self._placement = placement
        self._group = group
        self._directory = directory
        self.busy = True  # a cell runs; scripts do not know cells
        self.returning = False  # a cell waits for this process's memory
        self.paged_out_bytes = 0
        self._page_ins = 0  # that it was told since it has its place

    # --- cells -------------------------------------------------------------------------------

    def cell_begins(self) -> None:
        """Return when this process's memory is back on the device. Interruptible."""
        self.busy = True
        self._owner.memory.stop_paging_out()  # the keeper may do that, and has the lock
        with self._link.lock:
            self._link.say(Busy(True))
            self._come_back()

    def cell_ends(self) -> None:
        with self._link.lock:
            with contextlib.suppress(ConnectionLost, ProtocolError):
                self._turn.look()  # what the user has to be told of this cell
            self.busy = False
            self._link.say(Busy(False))

    def look_between_cells(self) -> None:
        """By the keeper: take what has come, unless a cell runs."""
        with self._link.lock, contextlib.suppress(ConnectionLost, ProtocolError):
            if not self.busy:
                self._turn.look()

    # --- page in -----------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        """Something of it has to come back before iterations."""
        return self._link.rests or self.paged_out_bytes > 0

    def _come_back(self) -> None:
        """Wait for room; without a broker there is none to wait for."""
        if not self.is_away:
            return  # it is there, and may have a turn in another thread
        self._usage.start_clock()
        self.returning = True
        try:
            self.ask_for_place()
            self._await_room()
            self.page_in()
        except BaseException:  # what was said is not known: the next connection says it all
            self._link.break_off()
            raise
        finally:
            self.returning = False
            self._usage.stop_wait()
            self._usage.tell_waited()

    def _await_room(self) -> None:
        while self.paged_out_bytes and not self._link.closed.is_set() and self._link.restored():
            with contextlib.suppress(ConnectionLost, ProtocolError):
                self._link.await_message()
                continue
            self._link.drop()

    def ask_for_place(self) -> None:
        """As long as it rests, and the broker refuses it one: others may have what it had."""
        for pause in pauses():
            if not self._link.rests or self._link.closed.is_set():
                return
            try:
                self._link.end_rest()
            except (ConnectionLost, ProtocolError):
                self._link.drop_with_rest()
            except GpuShareError as error:
                self._usage.tell_wait(self._turn.number, str(error))
                time.sleep(pause)

    def on_page_in(self, message: PageIn) -> None:
        self._page_ins += 1
        self.page_in()

    def page_in(self) -> None:
        if self.paged_out_bytes:
            trouble = self._owner.memory.page_in()
            self.paged_out_bytes = 0
            if trouble:
                self._owner.on_trouble(trouble)

    def was_registered(self) -> None:
        """The session has a place, and the broker counts its page-ins anew."""
        self._page_ins = 0

    # --- page out ----------------------------------------------------------------------------

    def on_page_out(self, message: PageOut) -> None:
        """Between cells, or in one that waits for its turn: then this thread does nothing else."""
        if self._turn.holding or (self.busy and not self._turn.waiting):
            return  # then the broker knows that it was asked in vain
        if self._group.joins and self._owner.inside:
            self._link.say(StaysIn(JOINS))
            return
        if self.busy and self._placement.is_gpu:
            self._link.say(StaysIn(ON_GPU))
            return
        self.paged_out_bytes, reason = self._move_out()
        out = PagedOut(self.paged_out_bytes, self._page_ins)
        answer: Message = StaysIn(reason) if reason else out
        self._link.say(answer)

    def on_rest(self, message: Rest) -> None:
        """Only with its memory on disk: what stays on the device has to be counted there. Not where
        a thread waits for a turn between cells, for then the broker keeps the place for that."""
        if self.busy or self._turn.waiting or self._turn.holding:
            return
        if self._group.joins and self._owner.inside:
            self._link.say(StaysIn(JOINS))
            return
        size, reason = self._move_out()
        if reason and self._owner.memory.live() > UNCOUNTED_BYTES:
            self._link.say(StaysIn(reason))
            return
        self.paged_out_bytes = size
        self._link.rest(size)

    def _move_out(self) -> tuple[int, str]:
        """The bytes that are out, and why nothing is. What is out already stays there: the broker
        counts on it."""
        if self.paged_out_bytes:
            return self.paged_out_bytes, ""
        return self._owner.memory.page_out(self._directory or _cache_directory())


def _cache_directory() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("jupyter_gpushare", ensure_exists=True)
