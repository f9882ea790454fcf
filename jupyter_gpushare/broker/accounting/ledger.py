"""The use of each device, hour by hour, in a SQLite database that others may read meanwhile.

Everything here blocks, and belongs to one thread at a time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...wire.messages import AccountRow

HOUR_SECONDS = 3600
BUSY_SECONDS = 0.5  # for which a writer waits for another, before it is tried again later
# Entry n migrates schema n to n + 1; PRAGMA user_version is the number of those done.
MIGRATIONS = (
    """
    CREATE TABLE used (
        hour INTEGER NOT NULL,  -- the Unix time at which it begins
        user TEXT NOT NULL,
        "group" TEXT NOT NULL,
        notebook TEXT NOT NULL,
        device TEXT NOT NULL,
        device_seconds REAL NOT NULL,
        waited_seconds REAL NOT NULL,
        persistent_byte_seconds REAL NOT NULL,
        lane_byte_seconds REAL NOT NULL,
        turns INTEGER NOT NULL,
        PRIMARY KEY (hour, user, "group", notebook, device)
    ) WITHOUT ROWID;
    CREATE TABLE sessions (  -- what is counted above of those that are open, or were just now
        id TEXT PRIMARY KEY,
        user TEXT NOT NULL,
        device_seconds REAL NOT NULL,
        waited_seconds REAL NOT NULL,
        seen REAL NOT NULL  -- Unix time
    ) WITHOUT ROWID;
    """,
)
# Days and hours are local time of the broker; a notebook is named together with its user.
KEYS = {
    "user": "user",
    "group": '"group"',
    "notebook": "user || ': ' || notebook",
    "day": "strftime('%Y-%m-%d', hour, 'unixepoch', 'localtime')",
    "hour": "strftime('%Y-%m-%d %H:%M', hour, 'unixepoch', 'localtime')",
}


class Key(NamedTuple):
    """The user, notebook and device of a use, and its hour (the Unix time at which it begins)."""

    hour: int
    user: str
    group: str
    notebook: str
    device: str


class DeviceUse(NamedTuple):
    """Use of a device: seconds, bytes times the seconds for which they were taken, and turns."""

    device_seconds: float = 0.0
    waited_seconds: float = 0.0
    persistent_byte_seconds: float = 0.0
    lane_byte_seconds: float = 0.0
    turns: int = 0

    def plus(self, more: DeviceUse) -> DeviceUse:
        return DeviceUse(
            self.device_seconds + more.device_seconds,
            self.waited_seconds + more.waited_seconds,
            self.persistent_byte_seconds + more.persistent_byte_seconds,
            self.lane_byte_seconds + more.lane_byte_seconds,
            self.turns + more.turns,
        )


class Counted(NamedTuple):
    """The totals of a session that are counted, in seconds, and the time at which they were."""

    user: str
    device_seconds: float
    waited_seconds: float
    seen: float


class Scope(NamedTuple):
    """The figures that a person may see: all, or those of a user and of some groups."""

    everything: bool
    user: str = ""
    groups: frozenset[str] = frozenset()


class UsageDatabase:
    """Owns the database in the file at `path`, or in memory. Raises OSError or sqlite3.Error."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = sqlite3.connect(
            path or ":memory:",
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def add(self, uses: Mapping[Key, DeviceUse], sessions: Mapping[str, Counted]) -> None:
        """Add these uses in one transaction, and replace `sessions`, by id, with Unix times."""
        with self._transaction():
            self._database.executemany(ADD_USE, ((*key, *use) for key, use in uses.items()))
            rows = ((name, *counted) for name, counted in sessions.items())
            self._database.executemany(SET_SESSION, rows)

    def forget(self, hours_before: float, sessions_before: float) -> None:
        """Delete what is older than these Unix times."""
        with self._transaction():
            self._database.execute("DELETE FROM used WHERE hour < ?", (hours_before,))
            self._database.execute("DELETE FROM sessions WHERE seen < ?", (sessions_before,))

    def sessions(self) -> dict[str, Counted]:
        """Return the counted totals of sessions by id, with Unix times."""
        rows = self._database.execute("SELECT * FROM sessions")
        return {name: Counted(*counted) for name, *counted in rows}

    def used_since(self, start: float) -> list[tuple[str, str, float]]:
        """Return users, groups and their device seconds since that Unix time."""
        return self._database.execute(
            'SELECT user, "group", sum(device_seconds) FROM used WHERE hour >= ? GROUP BY 1, 2',
            (start,),
        ).fetchall()

    def rows(self, by: str, start: float, end: float, scope: Scope) -> list[AccountRow]:
        """Return the sums of hours that begin from `start` until before `end`, within `scope`: the
        largest use of the device first, or by time."""
        groups = sorted(scope.groups)
        order = "1" if by in ("day", "hour") else "2 DESC, 1"
        query = (
            f"SELECT {KEYS[by]}, {SUMS} FROM used WHERE hour >= ? AND hour < ?"
            f' AND (? OR user = ? OR "group" IN ({", ".join("?" * len(groups))}))'
            f" GROUP BY 1 ORDER BY {order}"
        )
        given = (start, end, scope.everything, scope.user, *groups)
        return [AccountRow(*row) for row in self._database.execute(query, given)]

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")  # readers do not block the writer
        self._database.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost some seconds
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(f"it is of a newer version, with schema {version}")
        for number in range(version, len(MIGRATIONS)):
            done = f"PRAGMA user_version = {number + 1}"
            self._database.executescript(f"BEGIN; {MIGRATIONS[number]} {done}; COMMIT;")
        self._database.execute("SELECT count(*) FROM sessions").fetchone()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._database)


class _Transaction:
    """A transaction for a `with` block; that of the connection itself would not begin one."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *exception: object) -> None:
        self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def _columns(prefix: str) -> Iterable[str]:
    return (prefix.format(name) for name in DeviceUse._fields)


SUMS = ", ".join(_columns("sum({0})"))
ADD_USE = (
    f"INSERT INTO used VALUES ({', '.join('?' * (len(Key._fields) + len(DeviceUse._fields)))})"
    f" ON CONFLICT DO UPDATE SET {', '.join(_columns('{0} = {0} + excluded.{0}'))}"
)
SET_SESSION = f"INSERT OR REPLACE INTO sessions VALUES ({', '.join('?' * 5)})"
