"""How a session uses its lane: the lane of its next iterations, and the survivors in it.

The caller has the link's lock.
"""

from __future__ import annotations

from ..errors import DoesNotFit, NoRoom, OverQuota
from ..wire.messages import ALONE, Grant, Keep, Trim
from .link import Link
from .placement import Placement
from .usage import Owner


class LaneUse:
    """The use of a lane by one session. It reports each trouble with the lane to the user once."""

    def __init__(self, owner: Owner, link: Link, placement: Placement) -> None:
        self._owner = owner
        self._link = link
        self._placement = placement
        self.trouble = ""  # why iterations of the last grant run outside of the lane
        self.keeps_survivors = False  # there was no room for them outside of the lane
        self.squeezed_bytes = 0  # as the last grant says
        self.is_shared = False  # another session may use the lane at the same time

    def use(self, grant: Grant) -> None:
        """Use the lane of a grant for the next iterations. The broker's own copy of a grant that
        came by a direct handoff changes nothing."""
        lane, size = self._link.lane_of(grant)
        if lane is not None:
            if lane.grant == grant:
                return
            lane.grant = grant
        self.squeezed_bytes = grant.squeezed_bytes
        self.is_shared = grant.end != ALONE
        memory = self._owner.memory
        memory.squeeze_to(grant.squeezed_bytes)
        trouble = memory.use_lane(lane, size, self._placement.capacity)
        if trouble and trouble != self.trouble:
            self._owner.on_trouble(f"iterations run outside of the shared lane: {trouble}")
        self.trouble = trouble

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

    def may_leave(self) -> bool:
        """Return whether nothing is alive in the lane, after survivors have moved out if there is
        room for them outside of it."""
        if not (survivors := self.survivors()):
            return True
        try:
            self._link.ask(Keep(self._owner.memory.demand()))
            self.leave()
        except OverQuota as error:
            self._tell_of_survivors(survivors, str(error))
            return False
        except (NoRoom, DoesNotFit, MemoryError):
            self._tell_of_survivors(survivors, "there is no room for them outside of the lane")
            return False
        self.keeps_survivors = False
        return True

    def has_left(self) -> bool:
        """Empty the lane at the end of the session; return False if something of this process stays
        in it."""
        if self._owner.memory.is_torn:
            return False
        try:
            self.leave()
        except MemoryError:
            return False
        return True

    def _tell_of_survivors(self, size: int, why: str) -> None:
        if not self.keeps_survivors:
            self.keeps_survivors = True
            self._owner.on_trouble(
                f"{size / (1 << 20):.0f} MiB of the last iteration are still in use, and {why}, so"
                " this notebook keeps its turn and others wait: `del` the results that hold them,"
                " or run `%gpushare tidy`"
            )
