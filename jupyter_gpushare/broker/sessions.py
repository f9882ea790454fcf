"""The sessions of a broker: one record of each, in one registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import LimitExceeded, UnknownSession
from ..wire.messages import Demand, Grant
from .peer import Peer


@dataclass(eq=False, slots=True)
class SessionRecord:
    """What the broker knows of one session that the scheduler does not decide.

    The scheduler has its demand, weight and state (`_core.SessionState`). A session on several
    `devices` at once is a gang: the scheduler calls the first of them its own, and it has no
    memory of lanes.
    """

    id: str
    peer: Peer  # its connection; permissions are those of `peer.user`
    user: str  # opened the session, and is charged for it
    group: str
    domain: str  # the trust domain: memory of lanes is shared inside it alone
    devices: tuple[str, ...]
    name: str  # for people; the scheduler's sentences have no names in them
    mailbox: str = ""  # the handoff slot, or empty
    key: str = ""  # of that slot; empty until the session has renewed it
    allowed: Demand = field(default_factory=Demand)  # what the quotas count; not what was refused
    granted: Grant | None = None  # the turn that it has, as the session was told
    handed: Grant | None = None  # the turn that it may have by a direct handoff
    brought_turn: bool = False  # it came with the turn that it has
    is_refused: bool = False  # it was told that its demand does not fit
    has_fitted: bool = False  # it has reported a demand that fits
    is_outgrown: bool = False  # and was told that its demand fits no more
    resting_bytes: int = 0  # that are on disk while the session rests

    @property
    def device(self) -> str:
        return self.devices[0]

    @property
    def gang(self) -> tuple[str, ...]:
        """All devices of a session that has several at once, or none."""
        return self.devices if len(self.devices) > 1 else ()

    @property
    def told(self) -> Iterator[Grant]:
        """The turns that the session has, or may have by a direct handoff."""
        return (grant for grant in (self.granted, self.handed) if grant is not None)

    def follows(self, former: SessionRecord) -> None:
        """Take over what holds of a session beyond the connection that it had before."""
        self.brought_turn = former.brought_turn
        self.is_refused, self.is_outgrown = former.is_refused, former.is_outgrown
        self.has_fitted |= former.has_fitted


class Sessions:
    """Owns the records of all sessions that are open, or that rest: a session that rests has
    released its place to others until its next cell, and its connection stays.

    `sequence` grows with each change that viewers can see, and `generation` whenever sessions come
    or go, or belong to others.
    """

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._most, self._most_of_a_user = most, most_of_a_user
        self._open: dict[str, SessionRecord] = {}
        self._resting: dict[str, SessionRecord] = {}
        self.sequence = 0
        self.generation = 0

    # --- reading -------------------------------------------------------------------------------

    def __getitem__(self, session: str) -> SessionRecord:
        """An open session. Raises KeyError."""
        return self._open[session]

    def __iter__(self) -> Iterator[SessionRecord]:
        """The open sessions."""
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def get(self, session: str) -> SessionRecord | None:
        """The record if the session is open."""
        return self._open.get(session)

    def known(self, session: str) -> SessionRecord | None:
        """The record if the session is open or rests."""
        return self._open.get(session) or self._resting.get(session)

    def all_known(self) -> list[SessionRecord]:
        return [*self._open.values(), *self._resting.values()]

    def resting(self) -> dict[str, SessionRecord]:
        return self._resting.copy()

    def resting_on(self, peer: Peer) -> SessionRecord | None:
        """The session that rests on a connection, which carries one."""
        return next((one for one in self._resting.values() if one.peer is peer), None)

    def of(self, peer: Peer) -> SessionRecord:
        """The session that is open on a connection. Raises UnknownSession."""
        if peer.session is None:
            raise UnknownSession("this connection has no session: open one first")
        return self._open[peer.session]

    def check_room(self, peer: Peer, session: str) -> None:
        """Raises LimitExceeded where one more would be too many beside those that are open or rest,
        except the sessions whose place it takes."""
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
        """What viewers have seen is old."""
        self.sequence += 1

    def note_members(self) -> None:
        """A session has come or gone, or belongs to another user or group by now."""
        self.generation += 1

    def add(self, record: SessionRecord) -> None:
        """The session is open on this connection from now on."""
        self._open[record.id] = record
        record.peer.session = record.id
        self.note_members()

    def remove(self, record: SessionRecord) -> None:
        """The session is open no more."""
        del self._open[record.id]
        record.peer.session = None
        self.note_members()

    def rest(self, record: SessionRecord, count: int) -> None:
        """The session, which was removed, rests with `count` bytes on disk."""
        record.resting_bytes, record.allowed = count, Demand()
        self._resting[record.id] = record
        self.note_members()

    def end_rest(self, session: str) -> None:
        """The session does not rest, or rests no more."""
        self._resting.pop(session, None)
        self.note_members()

    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
        for name in self._open.keys() & self._resting.keys():
            return f"{name} is open, and rests"
        for name, record in self._open.items():
            if (record.id, record.peer.session) != (name, name):
                return f"{name} is open on a connection that has another session"
        if len({record.peer for record in self._resting.values()}) < len(self._resting):
            return "several sessions rest on one connection"
        return ""
