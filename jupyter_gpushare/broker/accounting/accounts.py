"""The use of the devices by each user, group and notebook: counted here, kept by the ledger.

A session that comes back reports its usage (`past`). It is credited with the part that is not
counted yet, at most the time since the last count. So a session that had the turn when a broker
crashed loses nothing, and no report makes anything count twice. A separate thread writes and reads
in batches, so a slow disk delays no turn.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from ...errors import cause
from ...settings import Settings, accounts_path
from ...wire.messages import AccountRow
from ..admin.rulebook import Accounting, Zone
from .ledger import HOUR_SECONDS, Counted, DeviceUse, Key, Scope, UsageDatabase

WRITE_SECONDS = 5.0  # between two batches
RETURN_SECONDS = 1800.0  # a session that was away for longer is counted from zero
GAP_SECONDS = 10.0  # between two counts; over a longer time the memory is unknown
FORGET_SECONDS = 300.0
MOST_OF_A_USER = 1000  # sessions that were lost and may come back
MOST_LOST = 20_000  # of all users; above it, each user keeps MOST_OF_A_USER at most
DAY_SECONDS = 86400
MAX_NAMES = 200  # notebooks of a user in an hour; all further ones count as one
OTHERS = "(others)"

log = logging.getLogger("jupyter_gpushare.broker")


class Seen(NamedTuple):
    """The scheduler's figures for a session: totals in seconds, and the memory that it takes now.

    `lane_bytes` is the size of the lane that it has turns in.
    """

    user: str
    group: str
    notebook: str
    device: str
    device_seconds: float
    waited_seconds: float
    persistent_bytes: int
    lane_bytes: int


class Past(NamedTuple):
    """Totals of a session, in seconds."""

    device_seconds: float
    waited_seconds: float


class AccountBook:
    """Owns what is counted and not written yet. `now` is monotonic seconds; `clock` returns Unix
    time, which days and hours follow."""

    def __init__(
        self,
        ledger: UsageDatabase | None = None,
        *,
        lack: str = "",
        clock: Callable[[], float] = time.time,
        now: float | None = None,
    ) -> None:
        """Without a ledger the accounts are lost when the broker ends; `lack` says why there is
        none.

        Raises sqlite3.Error where the ledger cannot be read.
        """
        self._retention_days = Accounting().retention_days
        self._zone = Zone()
        self._lack = lack
        self._failure = ""  # why the last batch could not be written, or empty
        self._ledger = ledger or UsageDatabase(None)
        self._clock = clock
        self._offset = clock() - (time.monotonic() if now is None else now)
        self._counted = {
            session: counted._replace(seen=counted.seen - self._offset)
            for session, counted in self._ledger.sessions().items()
        }
        self._turns: defaultdict[str, int] = defaultdict(int)  # granted, and not counted yet
        self._uses: dict[Key, DeviceUse] = {}  # not written yet
        self._changed: set[str] = set()  # sessions whose use is not written yet
        self._sent: deque[tuple[Future[None], dict[Key, DeviceUse]]] = deque()  # being written
        self._next_write = self._next_forget = 0.0
        self._most = MOST_LOST
        self._hour = 0
        self._names: defaultdict[str, set[str]] = defaultdict(set)  # by user, this hour
        self._thread = ThreadPoolExecutor(1, "gpushare-accounts")
        self._begin_day(clock())
        self._read_day()

    @classmethod
    def of(cls, settings: Settings) -> AccountBook:
        """Open the file that the settings name, or memory where that file cannot be used."""
        path = accounts_path(settings)
        try:
            return cls(UsageDatabase(path))
        except (OSError, sqlite3.Error) as error:
            lack = f"accounts end with this broker, since {path} cannot be used: {cause(error)}"
            log.warning("%s", lack)
            return cls(lack=lack)

    @property
    def trouble(self) -> str:
        """Why figures are not kept, in words for people, or empty."""
        return self._lack or self._failure

    def follow_rules(self, retention_days: int, zone: Zone) -> None:
        """Set for how long figures are kept, and the time zone in which days begin."""
        self._retention_days = retention_days
        if zone != self._zone:
            self._zone = zone
            self._begin_day(self._clock())
            self._read_day()

    # --- counting ------------------------------------------------------------------------------

    def granted(self, session: str) -> None:
        self._turns[session] += 1

    def closed(self, session: str) -> None:
        """The session has closed by itself, and does not come back."""
        self._counted.pop(session, None)
        self._changed.discard(session)
        self._turns.pop(session, None)

    def follow(self, now: float, sessions: Mapping[str, Seen]) -> None:
        """Count what these sessions have used since the last call with them."""
        self._turn_clock()
        for session, seen in sessions.items():
            self._count(now, session, seen)
        if now >= self._next_write:
            self._next_write = now + WRITE_SECONDS
            self.write()
        if now >= self._next_forget or len(self._counted) > self._most:
            self._forget(now)

    def past(self, now: float, session: str, user: str, said: Past, had_a_turn: bool) -> Past:
        """Return the totals that a session is credited with: the counted totals, plus what it
        `said` beyond them, at most the time since the last count. It gets more device seconds only
        if it `had_a_turn` meanwhile. An unknown session has used nothing yet."""
        before = self._counted.get(session)
        if before is None or before.user != user:
            return Past(0.0, 0.0)
        elapsed = max(0.0, now - before.seen)
        used = _within(elapsed, said.device_seconds - before.device_seconds)
        waited = _within(elapsed, said.waited_seconds - before.waited_seconds)
        return Past(before.device_seconds + had_a_turn * used, before.waited_seconds + waited)

    def used_today(self, user: str) -> float:
        """Return the device seconds since midnight in the time zone of the rules."""
        return self._users.get(user, 0.0)

    def used_today_by_group(self, group: str) -> float:
        """Return the device seconds since midnight of all users that were in the group at the
        time."""
        return self._groups.get(group, 0.0)

    def _count(self, now: float, session: str, seen: Seen) -> None:
        before = self._counted.get(session)
        self._counted[session] = Counted(seen.user, seen.device_seconds, seen.waited_seconds, now)
        self._changed.add(session)
        if before is None or before.user != seen.user:
            before = self._counted[session]  # its earlier use was not seen here
        use = _difference(now, before, seen, self._turns.pop(session, 0))
        if any(use):
            key = Key(self._hour, seen.user, seen.group, self._name(seen), seen.device)
            self._uses[key] = self._uses.get(key, DeviceUse()).plus(use)
            self._users[seen.user] += use.device_seconds
            self._groups[seen.group] += use.device_seconds

    def _name(self, seen: Seen) -> str:
        names = self._names[seen.user]
        if len(names) < MAX_NAMES:
            names.add(seen.notebook)
        return seen.notebook if seen.notebook in names else OTHERS

    # --- days and hours ------------------------------------------------------------------------

    def _turn_clock(self) -> None:
        unix = self._clock()
        if not self._day <= unix < self._day_ends:
            was_set_back = unix < self._day
            self._begin_day(unix)
            if was_set_back:
                self._read_day()
        if (hour := self._hour_of(unix)) != self._hour:
            self._hour = hour
            self._names.clear()

    def _hour_of(self, unix: float) -> int:
        """Return when the present hour began: an hour of UTC, or midnight within it. Without the
        latter, the first half hour of a day in India would belong to the day before."""
        midnights = self._day, Zone().day_of(unix)[0]  # by the rules, and by this machine
        return int(max(unix // HOUR_SECONDS * HOUR_SECONDS, *midnights))

    def _begin_day(self, unix: float) -> None:
        self._day, self._day_ends = self._zone.day_of(unix)
        self._users: defaultdict[str, float] = defaultdict(float)
        self._groups: defaultdict[str, float] = defaultdict(float)

    def _read_day(self) -> None:
        """Read the counts of today, by this broker and by earlier ones. Waits for the disk."""
        self.write()
        for user, group, seconds in self._thread.submit(
            self._ledger.used_since, self._day
        ).result():
            self._users[user] += seconds
            self._groups[group] += seconds

    # --- keeping -------------------------------------------------------------------------------

    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[AccountRow]]:
        """Sum by one of `ledger.KEYS`, from one Unix time until another, including what is not
        written yet."""
        self.write()
        return self._thread.submit(self._ledger.rows, by, start, end, scope)

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self.write()
        self._thread.shutdown()
        self._settle()
        self._ledger.close()

    def write(self) -> None:
        """Begin to write what is new."""
        self._settle()
        if self._uses:
            stored = {name: self._stored(name) for name in self._changed}
            self._sent.append(
                (self._thread.submit(self._ledger.add, self._uses, stored), self._uses)
            )
            self._uses, self._changed = {}, set()

    def _stored(self, session: str) -> Counted:
        counted = self._counted[session]
        return counted._replace(seen=counted.seen + self._offset)

    def _settle(self) -> None:
        """Collect finished batches; what could not be written goes into the next batch."""
        while self._sent and self._sent[0][0].done():
            written, uses = self._sent.popleft()
            if (error := written.exception()) is not None:
                for key, use in uses.items():
                    self._uses[key] = self._uses.get(key, DeviceUse()).plus(use)
            self._note(error)

    def _note(self, error: BaseException | None) -> None:
        """Warn once each time that writing begins to fail."""
        failure = f"accounts cannot be written now: {cause(error)}" if error is not None else ""
        if failure and not self._failure:
            log.warning("%s", failure)
        self._failure = failure

    def _forget(self, now: float) -> None:
        """Forget sessions that were last seen too long ago, and the oldest of users with too
        many."""
        self._next_forget = now + FORGET_SECONDS
        oldest, of = now - RETURN_SECONDS, Counter[str]()
        newest = sorted(self._counted.items(), key=lambda one: one[1].seen, reverse=True)
        self._counted = {}
        for name, one in newest:
            of[one.user] += 1
            if one.seen >= oldest and of[one.user] <= MOST_OF_A_USER:
                self._counted[name] = one
        self._most = max(MOST_LOST, 2 * len(self._counted))
        self._changed &= self._counted.keys()
        unix = self._clock()
        self._thread.submit(
            self._ledger.forget, unix - self._retention_days * DAY_SECONDS, unix - RETURN_SECONDS
        )


def _difference(now: float, before: Counted, seen: Seen, turns: int) -> DeviceUse:
    elapsed = max(0.0, now - before.seen)  # the clock may be set back between two brokers
    used = _within(elapsed, seen.device_seconds - before.device_seconds)
    return DeviceUse(
        device_seconds=used,
        waited_seconds=_within(elapsed, seen.waited_seconds - before.waited_seconds),
        persistent_byte_seconds=seen.persistent_bytes * elapsed if elapsed <= GAP_SECONDS else 0.0,
        lane_byte_seconds=seen.lane_bytes * used,
        turns=turns,
    )


def _within(elapsed: float, seconds: float) -> float:
    return max(0.0, min(seconds, elapsed))
