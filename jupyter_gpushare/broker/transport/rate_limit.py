"""Who is connected, by user: how many connections each has, and whose messages are next.

The broker is one loop. A user whose messages take longer than a slice of it waits until all others
were looked after, whatever the number of connections that they come on; and who goes on like that
has but a part of the loop, also where nobody else wants it, since the processors have other work.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import LimitExceeded

SLICE_SECONDS = 0.002  # of the loop, for one user
PERIOD_SECONDS = 0.01  # between the slices of who has nothing saved
PART = 0.5  # of the loop, for a user who goes on and on
SAVED_SECONDS = 1.0  # of the loop at most: so all notebooks of a user come back at once
MOST_SILENT = 32  # connections of a process that have not said yet who they are
MAX_BACKLOG_BYTES = (
    32 << 20
)  # that all connections of a user together leave unread, and one message


class Speaker(Protocol):
    """A connection that has said more than was handled."""

    def work(self) -> None:
        """Handle what its party has time for; then it waits again, if anything is left."""


class Reader(Protocol):
    """A connection that is sent something."""

    @property
    def unread_bytes(self) -> int: ...

    def stop(self) -> None:
        """It does not read."""


class Silent(Protocol):
    """A connection that has not said yet who it is."""

    uid: int
    pid: int

    @property
    def has_spoken(self) -> bool:
        """It has, and is to be heard yet."""

    def give_way(self) -> None: ...


class Antechamber:
    """Those who have not said yet who they are: few of a process, whose id is 0 where it cannot be
    seen, and of a Unix user no more than it may have connections. Where there are more, the oldest
    gives way: so they keep nobody out who speaks at once."""

    def __init__(self, most_of_a_uid: int) -> None:
        self._most_of_a_uid = most_of_a_uid
        self._of_uid: defaultdict[int, dict[Silent, None]] = defaultdict(dict)
        self._of_process: defaultdict[tuple[int, int], dict[Silent, None]] = defaultdict(dict)

    def join(self, one: Silent) -> None:
        of_uid, of_process = self._of_uid[one.uid], self._of_process[one.uid, one.pid]
        of_uid[one] = of_process[one] = None
        if len(of_uid) > self._most_of_a_uid:
            self._end(next(iter(of_uid)))
        elif one.pid and len(of_process) > MOST_SILENT:
            for silent in [each for each in of_process if not each.has_spoken][:1]:
                self._end(silent)

    def leave(self, one: Silent) -> None:
        """It has spoken, or gone."""
        self._of_uid[one.uid].pop(one, None)
        self._of_process[one.uid, one.pid].pop(one, None)
        if not self._of_process[one.uid, one.pid]:
            del self._of_process[one.uid, one.pid]

    def _end(self, one: Silent) -> None:
        self.leave(one)
        one.give_way()


class Party:
    """The connections of one user. Times are monotonic seconds."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.connections = 0
        self.waiting: deque[Speaker] = deque()
        self.behind: set[Reader] = set()  # that have not read all they were sent
        self.saved = SAVED_SECONDS
        self._since = self._used = 0.0

    def begin(self, now: float) -> None:
        """Somebody of it speaks."""
        if now - self._since >= PERIOD_SECONDS:
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """It has a slice again, if it has saved anything."""
        self.saved = min(SAVED_SECONDS, self.saved + PART * (now - self._since))
        self._since, self._used = now, 0.0

    def spend(self, seconds: float) -> None:
        """Seconds of the processor."""
        self._used += seconds
        self.saved -= seconds

    def falls_behind(self, reader: Reader, last_bytes: int) -> None:
        """It has not read all, of which so much was sent last. Where that is too much of all of
        them, the one that has read least ends."""
        self.behind = {each for each in (*self.behind, reader) if each.unread_bytes}
        if sum(each.unread_bytes for each in self.behind) > MAX_BACKLOG_BYTES + last_bytes:
            max(self.behind, key=lambda each: each.unread_bytes).stop()

    @property
    def has_time(self) -> bool:
        return self._used < SLICE_SECONDS and self.saved > 0.0


class Crowd:
    """All parties. `later` calls something after so many seconds, when all others who have said
    something by then were looked after."""

    def __init__(
        self, most_connections: int, later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._most = most_connections
        self._later = later
        self._parties: dict[str, Party] = {}
        self._waiting: dict[Party, None] = {}  # in the order in which they came
        self._is_due = False

    def party(self, user: str) -> Party:
        return self._parties.setdefault(user, Party(user))

    def join(self, user: str) -> Party:
        """Raises LimitExceeded where the user has too many connections."""
        party = self.party(user)
        if party.connections >= self._most:
            raise LimitExceeded(
                f"{user} has {self._most} connections to the broker, which is the limit"
                " (setting max_connections_per_user): end what leaves them open"
            )
        party.connections += 1
        return party

    def leave(self, party: Party) -> None:
        """The party stays: who leaves and comes back has saved no more by it."""
        party.connections -= 1

    def wait(self, party: Party, speaker: Speaker) -> None:
        """There is no time for what else it has said."""
        party.waiting.append(speaker)
        self._waiting[party] = None
        self._be_called()

    def _be_called(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            has_saved = any(party.saved > 0.0 for party in self._waiting)
            self._later(0.0 if has_saved else PERIOD_SECONDS, self._serve)

    def _serve(self) -> None:
        """A slice for each party that waits. Who has more to say waits again."""
        due, self._waiting = self._waiting, {}
        for party in due:
            party.refresh(time.monotonic())
            for _ in range(len(party.waiting)):
                if party.has_time:
                    party.waiting.popleft().work()
            if party.waiting:
                self._waiting[party] = None
        self._is_due = False
        self._be_called()
