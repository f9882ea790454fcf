"""The sessions of a broker: one record of each, in one registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import LimitExceeded, UnknownSession
from ..wire.demand import Curve, Demand, Squeezing
from ..wire.messages import Grant
from .finish_time import FinishTime
from .peer import Peer


@dataclass(eq=False, slots=True)
class SessionRecord:
    """The broker's record of one session, without the decisions of the scheduler.

    The scheduler has its demand, weight and state (`_core.SessionState`). A session on several
    `devices` at once is a gang: the scheduler calls the first of them its own, and it has no
    memory of lanes.
    """

    id: str
    peer: Peer  # its connection; permissions are those of `peer.user`
    user: str  # the user that opened the session and is charged for it
    group: str
    domain: str  # the trust domain: memory of lanes is shared only inside it
    devices: tuple[str, ...]
    name: str  # for people; the scheduler's sentences have no names in them
    handoff_slot: str = ""  # its name, or empty
    key: str = ""  # the key of that slot; empty until the session has renewed it
    allowed: Demand = field(default_factory=Demand)  # the quotas count it; no refused demand
    granted: Grant | None = None  # the turn that it has, as it was sent to the session
    handed: Grant | None = None  # the turn that it may have by a direct handoff
    brought_turn: bool = False  # whether it came to this connection with its turn
    is_refused: bool = False  # whether it was told that its demand does not fit
    has_fitted: bool = False  # whether it has ever reported a demand that fits
    is_outgrown: bool = False  # whether it was told that it does not fit any more
    above_quota: Demand | None = None  # it is throttled until this demand is allowed
    curve: Curve | None = None  # as it was reported
    squeezing: Squeezing | None = None  # as it was reported
    loop_iterations: int | None = None  # in the whole present loop
    remaining_iterations: int | None = None  # in the loop, at the last report
    resting_bytes: int = 0  # its memory on disk while it rests
    finish: FinishTime = field(default_factory=FinishTime)

    @property
    def device(self) -> str:
        return self.devices[0]

    @property
    def gang(self) -> tuple[str, ...]:
        """All devices of a session with several at once; empty for one with a single device."""
        return self.devices if len(self.devices) > 1 else ()

    @property
    def told(self) -> Iterator[Grant]:
        """The turns that the session has, or may have by a direct handoff."""
        return (grant for grant in (self.granted, self.handed) if grant is not None)

    def follows(self, former: SessionRecord) -> None:
        """Take over the state of a session that outlives its former connection."""
        self.brought_turn = former.brought_turn
        self.is_refused, self.is_outgrown = former.is_refused, former.is_outgrown
        self.has_fitted |= former.has_fitted
        self.above_quota = former.above_quota
        self.finish = former.finish


class Sessions:
    """Owns the records of all sessions that are open or rest. A resting session has left its place
    to others until its next cell, and keeps its connection.

    `sequence` grows with each change that viewers can see, and `generation` whenever sessions come
    or go, or their user or group changes.
    """

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._most, self._most_of_a_user = most, most_of_a_user
        self._open: dict[str, SessionRecord] = {}
        self._resting: dict[str, SessionRecord] = {}
        self.sequence = 0
        self.generation = 0

    # --- reading -------------------------------------------------------------------------------

    def __getitem__(self, session: str) -> SessionRecord:
        """Return an open session. Raises KeyError."""
        return self._open[session]

    def __iter__(self) -> Iterator[SessionRecord]:
        """Iterate over the open sessions."""
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def get(self, session: str) -> SessionRecord | None:
        """Return the record if the session is open."""
        return self._open.get(session)

    def known(self, session: str) -> SessionRecord | None:
        """Return the record if the session is open or rests."""
        return self._open.get(session) or self._resting.get(session)

    def all_known(self) -> list[SessionRecord]:
        return [*self._open.values(), *self._resting.values()]

    def resting(self) -> dict[str, SessionRecord]:
        return self._resting.copy()

    def resting_on(self, peer: Peer) -> SessionRecord | None:
        """Return the session that rests on a connection, which carries at most one, or None."""
        return next((one for one in self._resting.values() if one.peer is peer), None)

    def carried_by(self, peer: Peer) -> list[str]:
        """Return the session that is open on a connection, and the one that rests on it."""
        resting = self.resting_on(peer)
        return [*filter(None, [peer.session]), *([resting.id] if resting is not None else [])]

    def of(self, peer: Peer) -> SessionRecord:
        """Return the session that is open on a connection. Raises UnknownSession."""
        if peer.session is None:
            raise UnknownSession("this connection has no session: open one first")
        return self._open[peer.session]

    def check_room(self, peer: Peer, session: str) -> None:
        """Raise LimitExceeded if one more open or resting session would be too many. Sessions that
        the new one replaces do not count."""
        rest = [one for one in self._resting.values() if one.id != session and one.peer is not peer]
        others = [*self._open.values(), *rest]
        own = sum(one.peer.user == peer.user for one in others)
        for count, limit, whose in (
            (len(others), self._most, "this broker"),
            (own, self._most_of_a_user, f"each user; {peer.user} has them"),
        ):
            if count >= limit:
                raise LimitExceeded(f"{limit} sessions are the limit of {whose}: close one first")

    # --- changes -------------------------------------------------------------------------------

    def note_change(self) -> None:
        """Note a change that viewers have not seen yet."""
        self.sequence += 1

    def note_members(self) -> None:
        """Note that a session has come or gone, or that its user or group has changed."""
        self.generation += 1

    def add(self, record: SessionRecord) -> None:
        """Add the session, which is open on its connection from now on."""
        self._open[record.id] = record
        record.peer.session = record.id
        self.note_members()

    def remove(self, record: SessionRecord) -> None:
        """Remove the session, which is not open any more."""
        del self._open[record.id]
        record.peer.session = None
        self.note_members()

    def rest(self, record: SessionRecord, count: int) -> None:
        """Note that the session, which was removed, rests with `count` bytes on disk."""
        record.resting_bytes, record.allowed = count, Demand()
        self._resting[record.id] = record
        self.note_members()

    def end_rest(self, session: str) -> None:
        """Note that the session does not rest any more, if it did."""
        self._resting.pop(session, None)
        self.note_members()

    def is_valid(self) -> str:
        """Return an empty string, or the first broken invariant in words."""
        for name in self._open.keys() & self._resting.keys():
            return f"{name} is open, and rests"
        for name, record in self._open.items():
            if (record.id, record.peer.session) != (name, name):
                return f"{name} is open on a connection that has another session"
        if len({record.peer for record in self._resting.values()}) < len(self._resting):
            return "several sessions rest on one connection"
        return ""
