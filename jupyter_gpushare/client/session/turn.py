"""The turn of a session: it is requested, granted, and given back or passed to its successor.

The caller has the link's lock, except for `obtain` and the first check of `note_gone`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import get_ident

from ..._core import IdleTurn
from ...errors import Cancelled, ConnectionLost, GpuShareError, ProtocolError, from_code
from ...wire.client import Client
from ...wire.framing import encode
from ...wire.handoff_slot import HandoffSlot
from ...wire.messages import Error, Finish, Grant, NewKey, RenewKey, Request, Withdraw, Yield
from .gaps import Gaps
from .lane_use import LaneUse
from .link import LOOK_SECONDS, Link, pauses
from .placement import Placement
from .usage import Usage


class Turn:
    """The present turn, or the last one; `number` is unique among the turns of this session.
    `on_end` is called after the broker was told of the end of a turn.

    The handoff slot receives direct handoffs. The idle turn gives the turn back without Python, for
    user code that keeps the GIL between two iterations.
    """

    def __init__(
        self,
        link: Link,
        usage: Usage,
        placement: Placement,
        lane_use: LaneUse,
        idle_turn: IdleTurn,
        handoff_slot: HandoffSlot,
        gaps: Gaps,
    ) -> None:
        self._link = link
        self._usage = usage
        self._placement = placement
        self._lane_use = lane_use
        self._idle_turn = idle_turn
        self.handoff_slot = handoff_slot
        self._gaps = gaps
        self.on_end: Callable[[], None] = lambda: None
        self.number = 0
        self.holding = False
        self.waiting = False
        self.has_begun = False  # a turn has begun since this cell began
        self._waiter = 0  # the thread that waits, or has waited
        self.asked: Yield | None = None  # the request to end it at the next boundary
        self.refusal: GpuShareError | None = None
        self._ended = 0  # number of the last turn whose end the broker was told

    # --- wait for it -------------------------------------------------------------------------

    def obtain(self, ask_for_place: Callable[[], None]) -> None:
        """Request the next turn; return when it has begun, or the session is closed. Raises the
        error of a refusal. `ask_for_place` is called first: no turn is granted without a place.

        The caller does not have the link's lock, which is free while this waits: a cell of another
        thread needs it to begin, to end, and to change the session.
        """
        __tracebackhide__ = True
        with self._link.lock:
            self._raise_refusal()
        try:
            with self._link.lock:
                self._begin_wait()
            ask_for_place()
            with self._link.lock, contextlib.suppress(ConnectionLost):
                self._link.connected().send(Request(self.number))  # or the next registration does
            self._await_grant()
        except BaseException:
            with self._link.lock:
                self.withdraw()
            raise
        finally:
            self.waiting = False
            self._usage.tell_waited()
            if self._link.is_closed:
                self.handoff_slot.close()

    def _begin_wait(self) -> None:
        self._usage.start_clock()
        self.number += 1
        self._prepare_idle_turn()
        self._waiter = get_ident()
        self.waiting = True
        self.asked = None

    def _prepare_idle_turn(self) -> None:
        """Let the idle turn give the next turn back between iterations without Python. On a GPU it
        cannot, since only PyTorch knows what is alive there, and can wait for the work of the GPU.
        This is done now, because the device waits when the turn begins."""
        if not self._placement.is_gpu and self._placement.devices == 1:
            self._idle_turn.prepare(self.number, encode(Finish(self.number)))

    def _await_grant(self) -> None:
        __tracebackhide__ = True
        retries = pauses()
        while not self._is_over():
            if (client := self._hearing()) is None:
                time.sleep(next(retries))
                continue
            retries = pauses()
            if given := self._sleep(client):
                with self._link.lock:
                    if self._link.client is client:  # otherwise an earlier broker has sent it
                        self._link.take(Grant(*given))
                    if self.holding:
                        return

    def _is_over(self) -> bool:
        """Whether the wait has ended. Another thread may have taken the grant. Raises a refusal."""
        __tracebackhide__ = True
        with self._link.lock:
            if not self.holding:
                self._raise_refusal()
            return self.holding or self._link.is_closed

    def _hearing(self) -> Client | None:
        """Take what has come; return the connection. Return None if there is none, after one try to
        restore it."""
        with self._link.lock:
            try:
                client = self._link.connected()
                if client.has_news():
                    self._take_received(client)
                return client
            except (ConnectionLost, ProtocolError):
                self._link.drop()
            if not self._link.is_closed and not self._link.restored():
                self._usage.tell_wait(self.number, f"waits for the broker ({self._link.trouble})")
            return self._link.client

    def _take_received(self, client: Client) -> None:
        """Take all messages that have come, including those in one piece with a grant, such as a
        request to yield. Another session waits for the end of the next boundary, which then need
        not read them."""
        self._link.take(client.receive())
        while client.has_received and not self.refusal:
            self._link.take(client.receive())

    def _sleep(self, client: Client) -> tuple[int, ...] | None:
        """Sleep until a message or a direct handoff has come, or another thread has woken this one.
        Return the handoff."""
        if self.holding or self.refusal:
            return None
        if not self.handoff_slot.name:  # no other thread could wake this one
            self._link.sleep(client, LOOK_SECONDS)
            return None
        return self.handoff_slot.wait(client.fileno(), self.number)

    def _wake(self) -> None:
        """Wake the thread that waits, after another one has taken a message for it or has replaced
        the connection that it polls."""
        if self.waiting and self._waiter != get_ident():
            self.handoff_slot.send(self.handoff_slot.name, "")

    def withdraw(self) -> None:
        """End the wait after an interrupt, also if a grant or a refusal is already on its way."""
        self.refusal = None
        self._usage.stop_wait()
        self._usage.measure_anew()
        self.stop_holding()
        self.say_end()

    def _raise_refusal(self) -> None:
        """Raise a refusal once: the next cell tries again, since the user may have freed memory."""
        __tracebackhide__ = True
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            self._usage.measure_anew()
            raise refusal

    # --- what the broker says of it ----------------------------------------------------------

    # Messages with the numbers of other turns belong to withdrawn requests, and are ignored.

    @property
    def squeezed_bytes(self) -> int:
        """The bytes that the grant of this turn allows an iteration; 0: all that it needs."""
        return self._lane_use.squeezed_bytes if self.holding else 0

    def begin(self) -> None:
        self._usage.stop_wait()
        self.holding = self.has_begun = True
        self._idle_turn.lend()
        self._wake()

    def decline(self, say_why: Callable[[], None]) -> None:
        """End the turn that was granted before it begins, and request the next one; the thread
        waits on."""
        self.say_end()
        say_why()
        self.number += 1
        self._link.say(Request(self.number))
        self._wake()

    def on_yield(self, message: Yield) -> None:
        """Note the request; a direct handoff may have obeyed it already."""
        self._gaps.note_request(time.monotonic(), message.until_cell_ends)
        if message.turn == self.number and self.holding:
            self.asked = message
            self._idle_turn.want()

    def on_withdraw(self, message: Withdraw) -> None:
        if message.turn == self.number and self.waiting and not self.holding:
            self.refusal = Cancelled(message.reason)
            self._wake()

    def on_error(self, message: Error) -> None:
        """Note an error that answers no request; the turn also ends at the next boundary."""
        self.refusal = from_code(message.code, message.message)
        self.asked = Yield(self.number)
        self._wake()

    def on_renew_key(self, message: RenewKey) -> None:
        if key := self.handoff_slot.new_key():
            self._link.say(NewKey(key))

    def was_registered(self) -> None:
        """Forget a preemption request: its successor was named on the connection before."""
        self.asked = None
        if not self.holding:
            self._ended = self.number - self.waiting
        self._wake()

    # --- give it back ------------------------------------------------------------------------

    @property
    def owes_word(self) -> bool:
        """Whether the broker was not told yet that the turn has ended."""
        return self._ended != self.number and not self.waiting

    def look(self) -> None:
        """Take the messages that have come, without waiting."""
        self.note_gone()
        self._link.look()

    def take_news(self) -> None:
        """Take the messages that have come, at a boundary, up to a request to yield."""
        asked = self.asked
        while self.asked is asked and self._has_news():
            self._link.await_message()

    def _has_news(self) -> bool:
        """Whether a message has come. If one that is still unread names a successor, hand the turn
        off at once. The successor gets the turn sooner, and the messages are read after its end."""
        client = self._link.connected()
        if client.has_received:
            return True
        has_news = self.handoff_slot.look(client.fileno(), self.number)
        if has_news and self.holding:
            self._hand_off()
        return has_news

    def _hand_off(self) -> None:
        if self.handoff_slot.has_successor() and not self._lane_use.survivors():
            self._leave_lane()
            try:
                if self.stop_holding():
                    self.handoff_slot.hand_off()
                self.say_end()
            except BaseException as error:
                self._say_end_after(error)
                raise

    def give_back(self) -> None:
        """Leave the device to the successor, unless survivors of the lane can stay nowhere else.
        Raises ConnectionLost; then the next registration reports the end. The caller holds the
        turn, so the broker was not told of its end yet."""
        if not self._lane_use.may_leave(is_wanted=self.asked is not None):
            return
        self._leave_lane()
        try:
            is_ours, asked = self.stop_holding(), self.asked
            if is_ours and asked is not None and (successor := asked.successor) is not None:
                self.handoff_slot.send(successor.handoff_slot, successor.handoff_token)
            self._link.connected().send(Finish(self.number))
            self._ended = self.number
            self.on_end()
        except BaseException as error:
            self._say_end_after(error)
            raise

    def _leave_lane(self) -> None:
        """Leave the lane. If this process now has more of the device than the broker knows, tell
        the broker before another session has the turn and its room."""
        self._lane_use.leave()
        if self._usage.has_news:
            self._link.say(self._usage.report(time.monotonic(), self.holding))

    def _say_end_after(self, error: BaseException) -> None:
        """Tell the broker of the end of the turn even if an interrupt came in between. User code
        may catch the interrupt and compute nothing for long. Until the broker is told, no other
        session would get a turn."""
        if not isinstance(error, GpuShareError) and not self.holding:
            self.say_end()

    def end(self) -> None:
        """Give the turn back; or report its end, if an interrupt has prevented that before."""
        with contextlib.suppress(ConnectionLost):  # the next registration reports the end
            if self.holding:
                self.give_back()
            else:
                self.say_end()

    def note_gone(self) -> None:
        """Note whether the idle turn has given the turn back between two iterations."""
        if not self.holding or not self._idle_turn.gone_at():
            return
        with self._link.lock:
            if self.holding and (gone_at := self._idle_turn.gone_at()):
                self._ended = self.number
                self.stop_holding(gone_at)

    def stop_holding(self, now: float | None = None) -> bool:
        """End the turn at the time `now`; return False if it was given back already and another
        session may have it."""
        has_ended = self._idle_turn.keep()
        if self.holding:
            self.holding = False
            self._usage.stop_turn(now)
        return has_ended

    def say_end(self) -> None:
        if self._ended != self.number:
            self._link.say(Finish(self.number))
            self._ended = self.number

    # --- end of the session ------------------------------------------------------------------

    def leave_lane(self) -> bool:
        """End the turn; return whether nothing of this process stays in the lane."""
        stays = self.holding and not self._lane_use.has_left()
        self.stop_holding()
        return not stays

    def close(self) -> None:
        """Close the handoff slot, unless a thread waits: that one closes it when it has woken."""
        self._wake()
        if not self.waiting:
            self.handoff_slot.close()
        self._idle_turn.close()

    def forget(self) -> None:
        """Forget the turn in a forked child, which has none."""
        self.holding = False
        self._idle_turn.forget()
        self.handoff_slot.close()
