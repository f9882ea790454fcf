"""How a session uses its lane: the lane of its next iterations, and the survivors in it.

The caller has the link's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...errors import DoesNotFit, NoRoom, OverQuota
from ...wire.messages import ALONE, Grant, Keep, Trim
from .link import Link
from .placement import Placement
from .usage import Owner

STILL_IN_USE = (
    "{mib:.0f} MiB of the last iteration are still in use, and {why}, so this notebook {does}:"
    " `del` the results that hold them, or run `%gpushare tidy`"
)
OTHERS_SECONDS = 1.0
LOOK_SECONDS = 0.005
UNTIL_WANTED = "keeps its turn until another one waits for it, and is paged out then"
IN_THE_WAY = "keeps its turn and others wait"


class LaneUse:
    """The use of a lane by one session. It reports each trouble with the lane to the user once."""

    # Pages all memory out, with what was in the lane; returns whether it is out.
    page_out: Callable[[], bool]

    def __init__(self, owner: Owner, link: Link, placement: Placement) -> None:
        self._owner = owner
        self._link = link
        self._placement = placement
        self.trouble = ""  # why iterations of the last grant run outside of the lane
        self._told = ""  # what the notebook does since there is no room for its survivors
        self._owes_keep = False  # survivors have left the lane without room, and not to disk
        self.squeezed_bytes = 0  # as the last grant says
        self.is_shared = False  # another session may use the lane at the same time

    def use(self, grant: Grant) -> None:
        """Use the lane of a grant for the next iterations. The broker's own copy of a grant changes
        nothing if the grant came by a direct handoff before."""
        lane, size = self._link.lane_of(grant)
        if lane is not None:
            if lane.grant == grant:
                return
            lane.grant = grant
        memory = self._owner.memory
        if self.squeezed_bytes != grant.squeezed_bytes:
            self.squeezed_bytes = grant.squeezed_bytes
            memory.squeeze_to(grant.squeezed_bytes)
        self.is_shared = grant.end != ALONE
        trouble = memory.use_lane(lane, size, self._placement.capacity)
        if trouble and trouble != self.trouble:
            self._owner.on_trouble(f"iterations run outside of the shared lane: {trouble}")
        self.trouble = trouble

    def leave_room(self, size: int) -> None:
        """Note that the other sessions leave this one `size` bytes of the device."""
        self._placement.room = size
        self._owner.memory.leave_room(size)

    def on_trim(self, message: Trim) -> None:
        self._owner.memory.trim_lane(message.memory, message.bytes)
        if not message.bytes:
            self._link.release_lane(message.memory)

    def survivors(self) -> int:
        """Return the bytes that are alive in the lane after an iteration."""
        return self._owner.memory.survivors()

    def leave(self) -> None:
        """Empty the lane: when this returns, this process no longer uses the device."""
        self._owner.memory.evacuate()

    @property
    def keeps_survivors(self) -> bool:
        """Whether survivors stay in the lane, since there was no room for them outside of it."""
        return bool(self._told)

    def may_leave(self, is_wanted: bool = False) -> bool:
        """Move survivors out of the lane if there is room for them outside of it and no other
        thread may be using them. Return whether nothing is alive in the lane. If there is no room
        and another session waits for the turn, page all memory of this session out."""
        if not (survivors := self.survivors()) and not self._owes_keep:
            return True
        try:
            self._link.ask(Keep(self._owner.memory.demand()))
            self.leave()
        except (NoRoom, DoesNotFit, MemoryError) as error:
            if is_wanted and self._is_paged_out():
                return True
            is_in_the_way = is_wanted or self._placement.is_gpu
            self._tell_of_survivors(survivors, error, IN_THE_WAY if is_in_the_way else UNTIL_WANTED)
            return False
        self._told, self._owes_keep = "", False
        return not self.survivors()

    def await_others(self) -> None:
        """Wait until no other thread may be using survivors, but not for long: one of them may be
        waiting for this one. Meanwhile other threads begin no iteration, and allocate outside of
        the lane."""
        end = time.monotonic() + OTHERS_SECONDS
        while self.survivors() and not self._owner.memory.may_move() and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)

    def _is_paged_out(self) -> bool:
        is_out = self.page_out()
        self._owes_keep = not is_out and not self.survivors()
        if is_out:
            self._told = ""
        return is_out

    def has_left(self) -> bool:
        """Empty the lane at the end of the session; return False if something of this process stays
        in it."""
        if self._owner.memory.is_torn:
            return False
        try:
            self.leave()
        except MemoryError:
            return False
        return not self.survivors()

    def _tell_of_survivors(self, size: int, error: Exception, does: str) -> None:
        if self._told != does:
            self._told = does
            no_room = "there is no room for them outside of the lane"
            why = str(error) if isinstance(error, OverQuota) else no_room
            self._owner.on_trouble(STILL_IN_USE.format(mib=size / (1 << 20), why=why, does=does))
