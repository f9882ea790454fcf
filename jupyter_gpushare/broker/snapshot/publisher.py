"""Who looks at the broker or waits there, and which names each of them may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from ... import _core
from ...reasons import GONE, sentence
from ...wire import framing
from ...wire.messages import Wait
from ...wire.snapshot import Snapshot
from ..access.permissions import Deed, Object, Person
from ..admin.idle import Caretaker
from ..admin.rules import ALL_SEEING, Governor
from ..grants.grants import Place
from ..peer import Peer
from . import names
from .names import Namer

LEAST_WATCH_SECONDS = 0.05
FIRST_WAIT_SECONDS = 0.5  # shorter waits are not worth a message
FRESH_SECONDS = 0.05  # what is older tells its seconds wrong


class Watcher:
    """A looker that wants each change, at most one per interval."""

    def __init__(self, interval: float) -> None:
        self.interval = max(interval, LEAST_WATCH_SECONDS)
        self.seen = -1  # sequence of the last snapshot it got
        self.due = 0.0


class Audience:
    """`picture` makes the snapshot of a moment, with the names that a namer knows and no sentences;
    `sequence` says whether there is a newer one. Seconds are monotonic."""

    def __init__(
        self,
        governor: Governor,
        places: Mapping[str, Place],
        caretaker: Caretaker,
        picture: Callable[[float, Namer], Snapshot],
    ) -> None:
        self._governor = governor
        self._places = places
        self._caretaker = caretaker
        self._picture = picture
        self._watchers: dict[Peer, Watcher] = {}
        self._newest: tuple[int, float, Snapshot | None] = (-1, 0.0, None)  # sequence, time
        self._frames: dict[tuple[str, ...], bytes] = {}  # of that one, by whose names are in it
        self._visible: dict[Person, tuple[str, ...]] = {}

    def watch(self, peer: Peer, interval: float) -> None:
        self._watchers[peer] = Watcher(interval)

    def watchers_beside(self, peer: Peer) -> int:
        """Others of the same user."""
        return sum(one.user == peer.user for one in self._watchers if one is not peer)

    def leave(self, peer: Peer) -> None:
        self._watchers.pop(peer, None)

    def look_around(self) -> None:
        """Sessions have come or gone, or the rules are others: so are the names to be seen."""
        self._visible.clear()

    def show_all(self, sequence: int, now: float) -> None:
        """The newest snapshot to all who watch, but those who have seen it, had one just now, or do
        not read."""
        for peer, watcher in self._watchers.items():
            if watcher.seen != sequence and now >= watcher.due and not peer.is_behind():
                watcher.seen, watcher.due = sequence, now + watcher.interval
                self.show(peer, sequence, now)

    def show(self, peer: Peer, sequence: int, now: float) -> None:
        peer.send_frame(self._frame(self._governor.person(peer), sequence, now))

    def tell_waiters(self, device: str, picture: _core.Picture) -> None:
        """Why they wait, and for whom."""
        holders = {lane.id: lane.holder for lane in picture.lanes if lane.holder}
        anybody = next(iter(holders.values()), None)
        for state in picture.sessions:
            place = self._places[state.id]
            if place.device != device:  # a gang, which is told once
                continue
            if state.waiting is not None and state.waiting >= FIRST_WAIT_SECONDS:
                holder = None if place.gang else holders.get(state.lane or 0, anybody)
                self._tell(place.peer, state, holder)

    def namer(self, person: Person) -> Namer:
        """Names of notebooks as this person may see them."""

        def name(session: str) -> str:
            place = self._place_of(session)
            if place is not None and self._may_see_name(person, place):
                return place.name
            return self._hidden_name(session)

        return name

    def namer_for(self, peer: Peer) -> Namer:
        return self.namer(self._governor.person(peer))

    def _tell(self, peer: Peer, state: _core.SessionState, holder: str | None) -> None:
        if not peer.is_behind():
            namer = self.namer_for(peer)
            peer.send(
                Wait(
                    turn=state.turn,
                    place=state.place or 0,
                    waiting_seconds=state.waiting or 0.0,
                    reason=sentence(state.why, namer),
                    holder=None if holder is None else namer(holder),
                    expected_seconds=state.expected_wait,
                )
            )

    def _frame(self, person: Person, sequence: int, now: float) -> bytes:
        """The encoded snapshot, made once for all who see the same names."""
        snapshot = self._snapshot(sequence, now)
        visible = self._visible_to(person)
        if visible not in self._frames:
            name = self.namer(ALL_SEEING)
            shown = replace(snapshot, names={session: name(session) for session in visible})
            self._frames[visible] = framing.encode(shown)
        return self._frames[visible]

    def _snapshot(self, sequence: int, now: float) -> Snapshot:
        """With all names hidden. Its devices, which is nearly all of it, are encoded already."""
        last, made, newest = self._newest
        if newest is None or last != sequence or now - made > FRESH_SECONDS:
            hidden = self._picture(now, self._hidden_name)
            newest = replace(hidden, devices=msgspec.Raw(framing.encoded(hidden.devices)))
            self._newest = (sequence, now, newest)
            self._frames = {}
        return newest

    def _place_of(self, session: str) -> Place | None:
        """Also of who rests."""
        return self._places.get(session) or self._caretaker.place(session)

    def _hidden_name(self, session: str) -> str:
        place = self._place_of(session)
        return GONE if place is None else names.hidden(place.peer.user)

    def _visible_to(self, person: Person) -> tuple[str, ...]:
        """The sessions whose names they may see; asked often, and changed seldom."""
        if person not in self._visible:
            self._visible[person] = tuple(
                session
                for session, place in [*self._places.items(), *self._caretaker.places()]
                if self._may_see_name(person, place)
            )
        return self._visible[person]

    def _may_see_name(self, person: Person, place: Place) -> bool:
        return self._governor.rules.notebook_names == "everybody" or person.may(
            Deed.SEE_NAME, Object(place.peer.user, place.group)
        )
