"""Rate limits per user: how many connections each has, and whose messages are next.

The broker is one event loop. A user whose messages take longer than a slice of it waits until all
other users were served, whatever the number of connections that the messages come on. A user that
goes on like that is limited to a part of the loop, even when it is otherwise idle, since the
processors have other work.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ...errors import LimitExceeded

SLICE_SECONDS = 0.002  # of the loop, for one user
PERIOD_SECONDS = 0.01  # between the slices of a user that has nothing saved
PART = 0.5  # of the loop, for a user that has nothing saved
SAVED_SECONDS = 1.0  # of the loop at most: so all notebooks of a user come back at once
MOST_SILENT = 32  # connections of a process that have not said Hello yet
MAX_BACKLOG_BYTES = 32 << 20  # that all connections of a user leave unread, and one message
# Handles what a connection has said and its budget has time for; the rest waits again.
Handler: TypeAlias = Callable[[], None]


class Reader(Protocol):
    """A connection that is sent something."""

    @property
    def unread_bytes(self) -> int: ...

    def stop(self) -> None:
        """It does not read."""


class Silent(Protocol):
    """A connection that has not said Hello yet."""

    uid: int
    pid: int

    @property
    def has_spoken(self) -> bool:
        """Whether it has sent a message that is not handled yet."""

    def end_silent(self) -> None: ...


class SilentConnections:
    """Owns the connections that have not said Hello yet: few of a process, whose id is 0 where it
    cannot be seen, and of a Unix user no more than it may have connections. If there are more, the
    oldest is ended: so they keep out no client that says Hello at once."""

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
        one.end_silent()


class Budget:
    """The connections of one user, and the time of the loop that it may use. A token bucket:
    `saved` seconds are used up by messages, and come back with time. Times are monotonic
    seconds."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.connections = 0
        self.waiting: deque[Handler] = deque()
        self.behind: set[Reader] = set()  # that have not read all they were sent
        self.saved = SAVED_SECONDS
        self._since = self._used = 0.0

    def begin(self, now: float) -> None:
        """A connection of this user is served."""
        if now - self._since >= PERIOD_SECONDS:
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Give the user a slice again, if it has saved anything."""
        self.saved = min(SAVED_SECONDS, self.saved + PART * (now - self._since))
        self._since, self._used = now, 0.0

    def spend(self, seconds: float) -> None:
        """Seconds of the processor."""
        self._used += seconds
        self.saved -= seconds

    def falls_behind(self, reader: Reader, last_bytes: int) -> None:
        """Note that the reader has not read all; `last_bytes` were sent last. If the connections of
        the user together leave too much unread, end the one that has read least."""
        self.behind = {each for each in (*self.behind, reader) if each.unread_bytes}
        if sum(each.unread_bytes for each in self.behind) > MAX_BACKLOG_BYTES + last_bytes:
            max(self.behind, key=lambda each: each.unread_bytes).stop()

    @property
    def has_time(self) -> bool:
        return self._used < SLICE_SECONDS and self.saved > 0.0


class RateLimiter:
    """Owns the budgets of all users. `later` calls a function after a time in seconds, and after
    all other connections that have sent something by then were served."""

    def __init__(
        self, most_connections: int, later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._most = most_connections
        self._later = later
        self._budgets: dict[str, Budget] = {}
        self._waiting: dict[Budget, None] = {}  # in the order in which they came
        self._is_due = False

    def budget(self, user: str) -> Budget:
        return self._budgets.setdefault(user, Budget(user))

    def join(self, user: str) -> Budget:
        """Raises LimitExceeded where the user has too many connections."""
        budget = self.budget(user)
        if budget.connections >= self._most:
            raise LimitExceeded(
                f"{user} has {self._most} connections to the broker, which is the limit"
                " (setting max_connections_per_user): end what leaves them open"
            )
        budget.connections += 1
        return budget

    def leave(self, budget: Budget) -> None:
        """The budget stays: a user gains nothing by leaving and coming back."""
        budget.connections -= 1

    def wait(self, budget: Budget, handle: Handler) -> None:
        """Let the connection wait: there is no time for its further messages."""
        budget.waiting.append(handle)
        self._waiting[budget] = None
        self._be_called()

    def _be_called(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            has_saved = any(budget.saved > 0.0 for budget in self._waiting)
            self._later(0.0 if has_saved else PERIOD_SECONDS, self._serve)

    def _serve(self) -> None:
        """Serve a slice for each user that waits; one with more messages waits again."""
        due, self._waiting = self._waiting, {}
        for budget in due:
            budget.refresh(time.monotonic())
            for _ in range(len(budget.waiting)):
                if budget.has_time:
                    budget.waiting.popleft()()
            if budget.waiting:
                self._waiting[budget] = None
        self._is_due = False
        self._be_called()
