"""The messages that the broker sends without being asked, and the reaction of the session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ...wire.framing import ToClient
from ...wire.messages import (
    Error,
    GiveBack,
    Grant,
    Notice,
    PageIn,
    PageOut,
    RenewKey,
    Rest,
    Room,
    Trim,
    Wait,
    Withdraw,
    Yield,
)
from .lane_use import LaneUse
from .link import Link
from .residency import Residency
from .turn import Turn
from .usage import Owner, Usage

OF_A_PLACE = (PageOut, PageIn, GiveBack, Rest, Room)  # concern memory that the broker counts


class Dispatch:
    """Gives each message to the part of one session that it concerns.

    The caller has the link's lock, except for `take_notices`.
    """

    def __init__(
        self,
        owner: Owner,
        link: Link,
        usage: Usage,
        lane_use: LaneUse,
        turn: Turn,
        residency: Residency,
    ) -> None:
        self._owner = owner
        self._link = link
        self._usage = usage
        self._lane_use = lane_use
        self._turn = turn
        self._residency = residency
        self._notices: list[str] = []  # to show in the present cell, or the next one
        self._reactions: Mapping[type, Callable[[Any], None]] = {
            Grant: self._on_grant,
            Yield: turn.on_yield,
            Withdraw: turn.on_withdraw,
            RenewKey: turn.on_renew_key,
            Trim: lane_use.on_trim,
            Error: turn.on_error,
            PageOut: residency.on_page_out,
            PageIn: residency.on_page_in,
            Rest: residency.on_rest,
            GiveBack: self._on_give_back,
            Room: self._on_room,
            Wait: self._on_wait,
            Notice: self._on_notice,
        }

    def take(self, message: ToClient) -> None:
        """React to one message. A session that rests ignores messages about the memory that the
        broker counted before."""
        if self._link.rests and isinstance(message, OF_A_PLACE):
            return
        reaction = self._reactions.get(type(message))
        if reaction is not None:
            reaction(message)

    def take_notices(self) -> list[str]:
        """Return the sentences for the user; each is returned once."""
        notices, self._notices = self._notices, []
        return notices

    def _on_grant(self, grant: Grant) -> None:
        """Use the lane. If the session waits, its turn begins once its memory is in. Grants of
        other turns belong to requests that were withdrawn."""
        turn = self._turn
        if grant.turn != turn.number:
            return
        if turn.waiting:
            self._lane_use.use(grant)
            if self._residency.page_in():
                turn.begin()
            else:
                turn.decline(self._residency.say_out)
        elif turn.holding:
            self._lane_use.use(grant)

    def _on_give_back(self, message: GiveBack) -> None:
        """Return free memory to the device, but only between cells, when no thread allocates."""
        residency, holding = self._residency, self._turn.holding
        if not (residency.busy or holding or residency.paged_out_bytes):
            self._owner.memory.give_back()
            self._link.say(self._usage.report(time.monotonic(), holding))

    def _on_room(self, message: Room) -> None:
        """Note the room. Outside of its turn a session reports at once if the margin of its demand
        has changed, since another session may wait for those bytes. If it waits and needs more, it
        reports that its demand has to be measured: it needs a turn to learn how far it can be
        squeezed."""
        self._lane_use.leave_room(message.bytes)
        memory, holding = self._owner.memory, self._turn.holding
        if (memory.has_news and not holding) or (self._turn.waiting and memory.has_to_learn()):
            self._link.say(self._usage.report(time.monotonic(), holding))

    def _on_wait(self, wait: Wait) -> None:
        if wait.turn == self._turn.number and (self._turn.waiting or self._residency.returning):
            self._owner.on_wait(wait)

    def _on_notice(self, notice: Notice) -> None:
        self._notices.append(notice.sentence)
