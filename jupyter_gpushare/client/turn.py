"""The turn of a session: asked for, granted, and given back or handed to the session after it.

All of it is under the link's lock but for the first look of `note_gone`.
"""

from __future__ import annotations

import contextlib
import time

from .._core import IdleTurn
from ..errors import (
    Cancelled,
    ConnectionLost,
    GpuShareError,
    ProtocolError,
    from_code,
)
from ..wire.framing import encode
from ..wire.mailbox import Mailbox
from ..wire.messages import (
    Error,
    Finish,
    Grant,
    NewKey,
    RenewKey,
    Request,
    Withdraw,
    Yield,
)
from .lane_use import LaneUse
from .link import Link, pauses
from .placement import Placement
from .usage import Usage


class Turn:
    """The present one, or the last; `number` tells it from all others of this session.

    The mailbox is where a direct handoff comes in. The idle turn gives the turn back without
    Python, where user code keeps Python's lock between two iterations.
    """

    def __init__(
        self,
        link: Link,
        usage: Usage,
        placement: Placement,
        lane_use: LaneUse,
        idle_turn: IdleTurn,
        mailbox: Mailbox,
    ) -> None:
        self._link = link
        self._usage = usage
        self._placement = placement
        self._lane_use = lane_use
        self._idle_turn = idle_turn
        self.mailbox = mailbox
        self.number = 0
        self.holding = False
        self.waiting = False
        self.asked: Yield | None = None  # to end it at the next boundary
        self.refusal: GpuShareError | None = None
        self._ended = 0  # the last turn that the broker was told is over

    # --- wait for it -------------------------------------------------------------------------

    def begin_wait(self) -> None:
        self._usage.start_clock()
        self.number += 1
        self.waiting = True
        self.asked = None

    def await_grant(self) -> None:
        """Return when the turn has begun, or the session is closed. Raises what refused it."""
        __tracebackhide__ = True
        with contextlib.suppress(ConnectionLost):  # then the next connection asks
            self._link.connected().send(Request(self.number))
        while not self.holding and not self._link.closed.is_set():
            try:
                news = self._link.connected().await_turn(self.number, self.mailbox)
                if news is not None:
                    self._link.take(news)
            except (ConnectionLost, ProtocolError):
                self._restore_while_waiting()
            if not self.holding:
                self.raise_refusal()

    def end_wait(self) -> None:
        self.waiting = False
        self._usage.tell_waited()

    def withdraw(self) -> None:
        """After an interrupt nothing of the wait is left, whether or not a grant is on its way."""
        self._usage.stop_wait()
        self.stop_holding()
        self.say_end()

    def raise_refusal(self) -> None:
        """Said once: the next cell tries again, since the user may have made room."""
        __tracebackhide__ = True
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal

    def _restore_while_waiting(self) -> None:
        self._link.drop()
        for pause in pauses():
            if self._link.closed.is_set() or self._link.restored():
                return
            self._usage.tell_wait(self.number, f"waits for the broker ({self._link.trouble})")
            time.sleep(pause)

    # --- what the broker says of it ----------------------------------------------------------

    # Numbers of other turns belong to requests that were withdrawn, and are ignored.

    def is_granted_by(self, grant: Grant) -> bool:
        return grant.turn == self.number and self.waiting

    def has_lane_of(self, grant: Grant) -> bool:
        """The grant begins this turn, or tells of its lane once more."""
        return grant.turn == self.number and (self.waiting or self.holding)

    def begin(self) -> None:
        self._usage.stop_wait()
        self.holding = True
        self._lend()

    def _lend(self) -> None:
        """Between iterations the turn may go without Python; but not on a GPU, since only PyTorch
        knows what is alive there, and waits for what the GPU has still to do."""
        if not self._placement.is_gpu and self._placement.devices == 1:
            self._idle_turn.lend(self.number, encode(Finish(self.number)))

    def on_yield(self, message: Yield) -> None:
        if message.turn == self.number and self.holding:
            self.asked = message
            self._idle_turn.want()

    def on_withdraw(self, message: Withdraw) -> None:
        if message.turn == self.number and self.waiting and not self.holding:
            self.refusal = Cancelled(message.reason)

    def on_error(self, message: Error) -> None:
        """An error that answers nothing: the turn ends at the next boundary, too."""
        self.refusal = from_code(message.code, message.message)
        self.asked = Yield(self.number)

    def on_renew_key(self, message: RenewKey) -> None:
        if key := self.mailbox.new_key():
            self._link.say(NewKey(key))

    def was_registered(self) -> None:
        """A successor that was named, was named to the connection before."""
        self.asked = None
        if not self.holding:
            self._ended = self.number - self.waiting

    # --- give it back ------------------------------------------------------------------------

    @property
    def owes_word(self) -> bool:
        """The broker was not told that the turn is over."""
        return self._ended != self.number and not self.waiting

    def look(self) -> None:
        """Take what has come, without waiting."""
        self.note_gone()
        self._link.look()

    def hand_off(self) -> None:
        """A direct handoff at a boundary, before what has come is received: the successor that is
        named in it finds the turn sooner, and what has come finds this turn over."""
        if self.mailbox.has_successor() and not self._lane_use.survivors():
            self._lane_use.leave()
            if self.stop_holding():
                self.mailbox.hand_on()
            self.say_end()

    def give_back(self) -> None:
        """This process uses the device no more, and its successor may; but not where there is no
        room for what is alive in the lane. An interrupt in between leaves this process without a
        turn, and it says so at the end of its cell."""
        if not self._lane_use.may_leave():
            return
        self._lane_use.leave()
        is_ours = self.stop_holding()
        if is_ours and self.asked is not None and (successor := self.asked.successor) is not None:
            self.mailbox.send(successor.mailbox, successor.letter)
        self.say_end()

    def end(self) -> None:
        """Give the turn back, or say that it is over, which an interrupt may have prevented."""
        with contextlib.suppress(ConnectionLost):  # the next connection says the same
            if self.holding:
                self.give_back()
            else:
                self.say_end()

    def note_gone(self) -> None:
        """The turn may have gone between two iterations, while Python stood still."""
        if not self.holding or not self._idle_turn.gone_at():
            return
        with self._link.lock:
            if self.holding and (gone_at := self._idle_turn.gone_at()):
                self._ended = self.number
                self.stop_holding(gone_at)

    def stop_holding(self, now: float | None = None) -> bool:
        """Whether this ends the turn: not if it has gone, and another session may have it."""
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
        """End the turn; whether nothing of this process stays in the lane."""
        stays = self.holding and not self._lane_use.has_left()
        self.stop_holding()
        return not stays

    def close(self) -> None:
        self.mailbox.close()
        self._idle_turn.close()

    def forget(self) -> None:
        """In a forked child, which has no turn."""
        self.holding = False
        self._idle_turn.forget()
        self.mailbox.close()
