"""Who is connected, by user: how many connections each has, and whose messages are next.

The broker is one loop. A user whose messages take longer than a slice of it waits until all others
were looked after, whatever the number of connections that they come on; and who goes on like that
has but a part of the loop, also where nobody else wants it, since the processors have other work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import LimitExceeded

SLICE_SECONDS = 0.002  # of the loop, for one user
PERIOD_SECONDS = 0.01  # between the slices of who has nothing saved
PART = 0.5  # of the loop, for a user who goes on and on
SAVED_SECONDS = 1.0  # of the loop at most: so all notebooks of a user come back at once


class Speaker(Protocol):
    """A connection that has said more than was handled."""

    def work(self) -> None:
        """Handle what its party has time for; then it waits again, if anything is left."""


class Party:
    """The connections of one user. Times are monotonic seconds."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.connections = 0
        self.waiting: deque[Speaker] = deque()
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

    def join(self, user: str) -> Party:
        """Raises LimitExceeded where the user has too many connections."""
        party = self._parties.get(user) or Party(user)
        if party.connections >= self._most:
            raise LimitExceeded(
                f"{user} has {self._most} connections to the broker, which is the limit"
                " (setting max_connections_per_user): end what leaves them open"
            )
        party.connections += 1
        self._parties[user] = party
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
