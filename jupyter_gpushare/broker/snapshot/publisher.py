"""Publishes snapshots to subscribers, and tells waiting sessions why they wait."""

from __future__ import annotations

import os

import msgspec
from msgspec.structs import replace

from ... import _core
from ..._version import __version__
from ...reasons import to_wire
from ...wire import framing
from ...wire.messages import PROTOCOL, Wait, Welcome
from ...wire.snapshot import ACTIVE, Snapshot
from ..access.permissions import Person
from ..admin.rules import RuleEngine
from ..peer import Peer
from ..sessions import SessionRecord, Sessions
from . import views
from .builder import SnapshotBuilder
from .visibility import ALL_SEEING, Visibility

LEAST_WATCH_SECONDS = 0.05
FIRST_WAIT_SECONDS = 0.5  # shorter waits are not worth a message
FRESH_SECONDS = 0.05  # the durations in an older snapshot are wrong
Seen = tuple[tuple[str, ...], tuple[str, ...]]  # sessions with visible names, with visible causes


class Subscription:
    """A viewer that wants each change, at most one per interval."""

    def __init__(self, interval: float) -> None:
        self.interval = max(interval, LEAST_WATCH_SECONDS)
        self.seen = -1  # the sequence of the last snapshot that was sent
        self.due = 0.0


class Publisher:
    """Owns the subscriptions, and the newest snapshot as bytes. Seconds are monotonic."""

    def __init__(
        self,
        sessions: Sessions,
        rules: RuleEngine,
        visibility: Visibility,
        builder: SnapshotBuilder,
    ) -> None:
        self._sessions = sessions
        self._rules = rules
        self._visibility = visibility
        self._builder = builder
        self._subscriptions: dict[Peer, Subscription] = {}
        self._welcomes: dict[Peer, Welcome] = {}  # the last one sent to each connection
        self._newest: tuple[int, float, Snapshot | None] = (-1, 0.0, None)  # sequence, time
        self._frames: dict[Seen, bytes] = {}  # of the newest, by what is visible in it

    def subscribe(self, peer: Peer, interval: float) -> None:
        self._subscriptions[peer] = Subscription(interval)

    def forget(self, peer: Peer) -> None:
        self._subscriptions.pop(peer, None)
        self._welcomes.pop(peer, None)

    def subscribers_beside(self, peer: Peer) -> int:
        """Return the number of other subscriptions of the same user."""
        return sum(one.user == peer.user for one in self._subscriptions if one is not peer)

    def publish(self, now: float) -> None:
        """Send the newest snapshot to the subscribers, after a new Welcome if theirs has changed.
        Skip subscribers that have seen the snapshot, had one within their interval, or do not
        read."""
        sequence = self._sessions.sequence
        for peer, one in self._subscriptions.items():
            if one.seen != sequence and now >= one.due and not peer.is_behind():
                one.seen, one.due = sequence, now + one.interval
                if self._welcome(peer) != self._welcomes.get(peer):
                    self.greet(peer)
                self.show(peer, now)

    def greet(self, peer: Peer) -> None:
        """Tell a connection which user it stands for, and with which permissions."""
        self._welcomes[peer] = welcome = self._welcome(peer)
        peer.send(welcome)

    def _welcome(self, peer: Peer) -> Welcome:
        is_administrator = self._rules.person(peer).is_admin
        return Welcome(PROTOCOL, __version__, os.getpid(), peer.user, is_administrator)

    def show(self, peer: Peer, now: float) -> None:
        peer.send_frame(self._frame(self._rules.person(peer), now))

    def tell_waiters(self, device: str, device_snapshot: _core.DeviceSnapshot, now: float) -> None:
        """Tell the sessions that wait for a device why they wait, and for which session."""
        holders = {lane.id: lane.holder for lane in device_snapshot.lanes if lane.holder}
        first = next(iter(holders.values()), None)
        others = self._builder.takers(device, device_snapshot.sessions, now) - 1
        for state in device_snapshot.sessions:
            record = self._sessions[state.id]
            if record.device != device:  # a gang is told once, on its first device
                continue
            if state.waiting is not None and state.waiting >= FIRST_WAIT_SECONDS:
                holder = None if record.gang else holders.get(state.lane or 0, first)
                self._tell(record, state, holder, others, now)

    def _tell(
        self,
        record: SessionRecord,
        state: _core.SessionState,
        holder: str | None,
        others: int,
        now: float,
    ) -> None:
        if not (peer := record.peer).is_behind():
            name = self._visibility.namer_for(peer)
            peer.send(
                Wait(
                    turn=state.turn,
                    position=state.position or 0,
                    waiting_seconds=state.waiting or 0.0,
                    reason="",
                    holder=None if holder is None else name(holder),
                    expected_seconds=state.expected_wait,
                    expected_is_bound=state.is_bound,
                    others=others if state.state in ACTIVE else 0,
                    why=list(map(to_wire, state.why)),
                    names={one.other: name(one.other) for one in state.why if one.other},
                    remaining_seconds=views.remaining_seconds(state, record, now),
                )
            )

    def _frame(self, person: Person, now: float) -> bytes:
        """Return the encoded snapshot. Viewers that may see the same names and causes share one."""
        snapshot = self._snapshot(now)
        causes = self._visibility.causes(person, snapshot.causes)
        seen = (self._visibility.visible_to(person), tuple(causes))
        if seen not in self._frames:
            name = self._visibility.namer(ALL_SEEING)
            names = {session: name(session) for session in seen[0]}
            self._frames[seen] = framing.encode(replace(snapshot, names=names, causes=causes))
        return self._frames[seen]

    def _snapshot(self, now: float) -> Snapshot:
        """Return a snapshot with all names hidden, and all causes.

        Its devices, which are nearly all of it, are encoded already."""
        sequence = self._sessions.sequence
        last, made, newest = self._newest
        if newest is None or last != sequence or now - made > FRESH_SECONDS:
            hidden = self._builder.build(now, self._visibility.hidden)
            newest = replace(hidden, devices=msgspec.Raw(framing.encoded(hidden.devices)))
            self._newest = (sequence, now, newest)
            self._frames = {}
        return newest
