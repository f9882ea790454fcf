"""Rate limits per user: how many connections each has, and whose messages are next.

The broker is one event loop. A user whose messages take longer than a slice of its time waits until
all other users were served, however many connections bring the messages. A user that continues like
this is limited to a part of the loop, even if the loop is otherwise idle, since the processors have
other work.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ...errors import LimitExceeded

SLICE_SECONDS = 0.002  # time of the loop for one user
PERIOD_SECONDS = 0.01  # between the slices of a user that has nothing saved
PART = 0.5  # of the loop's time, for a user that has nothing saved
SAVED_SECONDS = 1.0  # the most, so that all notebooks of a user can come back at once
MOST_SILENT = 32  # connections of a process that have not said Hello yet
MAX_BACKLOG_BYTES = 32 << 20  # unread on all connections of a user, besides one message
# Handles messages of a connection while its budget has time; further messages wait again.
Handler: TypeAlias = Callable[[], None]


class Reader(Protocol):
    """A connection that the broker sends messages on."""

    @property
    def unread_bytes(self) -> int: ...

    def stop(self) -> None:
        """End the connection, since it does not read."""


class Silent(Protocol):
    """A connection that has not said Hello yet."""

    uid: int
    pid: int

    @property
    def has_spoken(self) -> bool:
        """Whether it has sent a message that is not handled yet."""

    def end_silent(self) -> None: ...


class SilentConnections:
    """Owns the connections without a Hello, and limits their number for each process and Unix user.
    An invisible process has the id 0, and no limit of its own. Above a limit the oldest connection
    is ended, so silent ones keep out no client that says Hello at once."""

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
        """Forget a connection that has said Hello, or has ended."""
        self._of_uid[one.uid].pop(one, None)
        self._of_process[one.uid, one.pid].pop(one, None)
        if not self._of_process[one.uid, one.pid]:
            del self._of_process[one.uid, one.pid]

    def _end(self, one: Silent) -> None:
        self.leave(one)
        one.end_silent()


class Budget:
    """The connections of one user, and a token bucket for its time of the loop: messages use the
    `saved` seconds up, and time restores them. Times are monotonic seconds."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.connections = 0
        self.waiting: deque[Handler] = deque()
        self.behind: set[Reader] = set()  # readers with unread messages
        self.saved = SAVED_SECONDS
        self._since = self._used = 0.0

    def begin(self, now: float) -> None:
        """Begin to serve a connection of this user."""
        if now - self._since >= PERIOD_SECONDS:
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Begin a new slice, and add the time saved since the last one."""
        self.saved = min(SAVED_SECONDS, self.saved + PART * (now - self._since))
        self._since, self._used = now, 0.0

    def spend(self, seconds: float) -> None:
        """Charge the user for seconds of processor time."""
        self._used += seconds
        self.saved -= seconds

    def falls_behind(self, reader: Reader, last_bytes: int) -> None:
        """Note that the reader has unread messages; the last one has `last_bytes`. If the user's
        connections together leave too much unread, end the one with the most unread bytes."""
        self.behind = {each for each in (*self.behind, reader) if each.unread_bytes}
        if sum(each.unread_bytes for each in self.behind) > MAX_BACKLOG_BYTES + last_bytes:
            max(self.behind, key=lambda each: each.unread_bytes).stop()

    @property
    def has_time(self) -> bool:
        return self._used < SLICE_SECONDS and self.saved > 0.0


class RateLimiter:
    """Owns the budgets of all users. `later` calls a function after some seconds, and after serving
    all connections that have sent something by then."""

    def __init__(
        self, most_connections: int, later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._most = most_connections
        self._later = later
        self._budgets: dict[str, Budget] = {}
        self._waiting: dict[Budget, None] = {}  # in order of arrival
        self._is_due = False

    def budget(self, user: str) -> Budget:
        return self._budgets.setdefault(user, Budget(user))

    def join(self, user: str) -> Budget:
        """Count a new connection. Raises LimitExceeded if the user has too many."""
        budget = self.budget(user)
        if budget.connections >= self._most:
            raise LimitExceeded(
                f"{user} has {self._most} connections to the broker, which is the limit"
                " (setting max_connections_per_user): end what leaves them open"
            )
        budget.connections += 1
        return budget

    def leave(self, budget: Budget) -> None:
        """Forget a connection. The budget stays, so a user gains nothing by leaving and coming
        back."""
        budget.connections -= 1

    def wait(self, budget: Budget, handle: Handler) -> None:
        """Let the connection wait, since there is no time for its further messages."""
        budget.waiting.append(handle)
        self._waiting[budget] = None
        self._be_called()

    def _be_called(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            has_saved = any(budget.saved > 0.0 for budget in self._waiting)
            self._later(0.0 if has_saved else PERIOD_SECONDS, self._serve)

    def _serve(self) -> None:
        """Serve a slice for each waiting user. A user with more messages waits again."""
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
