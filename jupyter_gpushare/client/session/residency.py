"""The residency of a session: its persistent memory is on the device, or paged out.

A session whose cells are announced is paged out between them when others need the room. If that
lasts, the session *rests*: it is released from the broker until its next cell, and the broker
counts no memory of it. The caller has the link's lock, except in methods that take it; those that
wait do not keep it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ...errors import ConnectionLost, GpuShareError, ProtocolError
from ...wire.client import Client
from ...wire.messages import Busy, PagedOut, PageIn, PageOut, Rest, StaysIn
from ..process_groups import Membership
from .link import LOOK_SECONDS, Link, pauses
from .placement import Placement
from .turn import Turn
from .usage import Owner, Usage

ON_GPU = "a cell runs, and a GPU cannot wait for memory that another thread of it may use"
JOINS = "it computes in the turns of another member of its process group"
UNCOUNTED_BYTES = 1 << 20  # a session with less on the device may rest without page-out


class Residency:
    """The residency of one session. `directory` holds the files of paged out memory; if it is
    empty, the user's cache directory does."""

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
        self.busy = True  # a cell runs; always in scripts, which have no cells
        self.returning = False  # a cell waits for the page-in of this process's memory
        self.paged_out_bytes = 0
        self._page_ins = 0  # requests to page in since the last registration
        self._owes_word = False  # the broker was not told yet that the memory is out
        self._has_told = False  # the user knows that it cannot come back yet

    # --- cells -------------------------------------------------------------------------------

    def cell_begins(self) -> None:
        """Return when this process's memory is back on the device. Interruptible."""
        self.busy, self._turn.has_begun = True, False
        self._owner.memory.stop_paging_out()  # another thread may be paging out, with the lock
        with self._link.lock:
            self._link.say(Busy(True))
            if not self.is_away:
                return  # it is resident, and another thread may have the turn
        self._come_back()

    def cell_ends(self) -> None:
        with self._link.lock:
            with self._ends_on_failure(), contextlib.suppress(ConnectionLost, ProtocolError):
                self._turn.look()  # for notices about this cell
            self.busy = False
            self._link.say(Busy(False))

    def look_between_cells(self) -> None:
        """Take the messages that have come, unless another thread does; the keeper calls this."""
        with self._link.lock, contextlib.suppress(ConnectionLost, ProtocolError):
            if self.is_heard_by_keeper:
                self._turn.look()

    @property
    def is_heard_by_keeper(self) -> bool:
        """Whether no cell runs and no thread waits for a turn, and so none takes the messages."""
        return not (self.busy or self._turn.waiting)

    # --- page in -----------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        return self._directory or _cache_directory()

    @property
    def is_away(self) -> bool:
        """Whether the session has to register or page in before iterations."""
        return self._link.rests or self.paged_out_bytes > 0

    @property
    def is_out_of_reach(self) -> bool:
        """Whether memory is out that nothing may use before it is back: a GPU cannot read it from
        the file."""
        return self._placement.is_gpu and self.paged_out_bytes > 0

    def _come_back(self) -> None:
        """Wait for room and page in; without a broker page in at once. If another thread waits for
        the turn meanwhile, only the wait of that thread is counted."""
        is_counted = not self._turn.waiting
        if is_counted:
            self._usage.start_clock()
        self.returning = True
        try:
            self.ask_for_place()
            while not self._has_come_back():
                pass
        except BaseException:  # the broker may not know: the next connection tells it
            with self._link.lock:
                self._link.break_off()
            raise
        finally:
            self.returning = False
            if is_counted:
                self._usage.stop_wait()
                self._usage.tell_waited()

    def _has_come_back(self) -> bool:
        while (client := self._hears_of_room()) is not None:
            self._link.sleep(client, LOOK_SECONDS)
        with self._link.lock:
            return self.page_in()

    def _hears_of_room(self) -> Client | None:
        """Take what has come; return the connection, or None if there is nothing to wait for."""
        with self._link.lock:
            while self.paged_out_bytes and not self._link.is_closed and self._link.restored():
                try:
                    self._link.look()
                except (ConnectionLost, ProtocolError):
                    self._link.drop()
                if self.paged_out_bytes and self._link.client is not None:
                    return self._link.client
            return None

    def ask_for_place(self) -> None:
        """Register again if the session rests. Try until the broker accepts it, since other
        sessions may use the room that it had. The lock is free between the tries."""
        for pause in pauses():
            if not self._asks_again():
                return
            time.sleep(pause)

    def _asks_again(self) -> bool:
        """Return whether the broker has refused a place."""
        with self._link.lock:
            if not self._link.rests or self._link.is_closed:
                return False
            try:
                self._link.end_rest()
            except (ConnectionLost, ProtocolError):
                self._link.drop_with_rest()
            except GpuShareError as error:
                self._usage.tell_wait(self._turn.number, str(error))
                return True
            return False

    def on_page_in(self, message: PageIn) -> None:
        self._page_ins += 1
        if not self.page_in():
            self.say_out()

    def page_in(self) -> bool:
        """Page in; return whether the memory can be used again. On `host` it can even if it could
        not be read back, since it is in the file. On a GPU, memory without room stays out, and the
        user is told once."""
        if not self.paged_out_bytes:
            return True
        with self._ends_on_failure():
            trouble, had_told = self._move_in(), self._has_told
        self._owes_word, self._has_told = False, self.is_out_of_reach
        if trouble and not had_told:
            is_tried_again = self._has_told and not self._link.is_closed
            self._owner.on_trouble(f"{trouble}; trying again" if is_tried_again else trouble)
        return not self.paged_out_bytes

    def _move_in(self) -> str:
        """Page in; return the reason for which memory is still out."""
        try:
            trouble = self._owner.memory.page_in()
        except BaseException:  # in the midst of it
            if self._placement.is_gpu:
                self.paged_out_bytes = self._bytes_kept_out()
            raise
        is_lacking = bool(trouble) and self._placement.is_gpu
        self.paged_out_bytes = self._bytes_kept_out() if is_lacking else 0
        return trouble

    def _bytes_kept_out(self) -> int:
        """Page out again what has come back, since the broker counts a session in or out as a
        whole."""
        memory = self._owner.memory
        if memory.bytes_out():
            memory.page_out(self.directory)
        return memory.bytes_out()

    @contextlib.contextmanager
    def _ends_on_failure(self) -> Iterator[None]:
        """End the connection if an interrupt or an error keeps a message, such as a Grant or a
        PageIn, from its effect. The next registration tells the broker the actual state."""
        try:
            yield
        except BaseException:
            self._link.break_off()
            raise

    def say_out(self) -> None:
        """Tell the broker that the memory is out. The broker says when there is room again, if a
        cell or a turn needs it."""
        self._link.say(PagedOut(self.paged_out_bytes, self._page_ins))

    def was_registered(self) -> None:
        """The session is registered, and the broker counts its page-ins from 0."""
        self._page_ins, self._owes_word = 0, False

    # --- page out ----------------------------------------------------------------------------

    def on_page_out(self, message: PageOut) -> None:
        """Page out between cells, or in a cell that waits for its turn, whose thread does nothing
        else."""
        if self._turn.holding or (self.busy and not self._turn.waiting):
            return  # the broker finds out that its request came too late
        if self._group.joins and self._owner.inside:
            self._link.say(StaysIn(JOINS))
            return
        if self.busy and self._placement.is_gpu:
            self._link.say(StaysIn(ON_GPU))
            return
        self.paged_out_bytes, reason = self._move_out()
        if reason:
            self._link.say(StaysIn(reason))
        else:
            self.say_out()

    def page_out_in_turn(self) -> bool:
        """Page out at the end of a turn, with the survivors of the lane, since there is no room for
        them. Return whether all of it is out."""
        if self._placement.is_gpu or self._placement.devices > 1 or self._group.joins:
            return False  # as for `on_page_out`
        try:
            self._owner.memory.evacuate()
        except MemoryError:
            return False
        self.paged_out_bytes, reason = self._move_out()
        self._owes_word = not reason
        return not reason

    def turn_ended(self) -> None:
        """Tell the broker what was paged out in the turn, and how much room the session needs from
        now on. It is told after the turn, since a session that has the turn counts as resident."""
        if self._owes_word:
            self._owes_word = False
            self._link.say(self._usage.report(time.monotonic(), holding=False))
            self.say_out()

    def on_rest(self, message: Rest) -> None:
        """Rest, if the persistent memory can be moved to disk: otherwise the broker has to count
        what stays on the device. While a thread waits for a turn between cells the session does not
        rest, since the broker keeps its place for that thread."""
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
        """Page out; return the bytes that are out and an empty string, or 0 and the reason. Memory
        that is out already stays out, as the broker expects."""
        if self.paged_out_bytes:
            return self.paged_out_bytes, ""
        with self._ends_on_failure():
            try:
                return self._owner.memory.page_out(self.directory)
            except BaseException:
                self.paged_out_bytes = self._owner.memory.bytes_out()
                raise


def _cache_directory() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("jupyter_gpushare", ensure_exists=True)
