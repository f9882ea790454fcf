"""The use of each device, hour by hour, in a SQLite database that others may read meanwhile.

Everything here blocks, and belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...database import opened, transaction
from ...wire.messages import AccountRow

HOUR_SECONDS = 3600
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
    """Use of a device: seconds, bytes times the seconds that they were in use, and turns."""

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
    """The counted totals of a session, in seconds, and the time of the count."""

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
        # Readers do not block the writer; a power cut may cost some seconds.
        pragmas = ("journal_mode = WAL", "synchronous = NORMAL")
        self._database = opened(path, MIGRATIONS, *pragmas)

    def close(self) -> None:
        self._database.close()

    def add(self, uses: Mapping[Key, DeviceUse], sessions: Mapping[str, Counted]) -> None:
        """Add these uses in one transaction, and replace `sessions`, by id, with Unix times."""
        with transaction(self._database):
            self._database.executemany(ADD_USE, ((*key, *use) for key, use in uses.items()))
            rows = ((name, *counted) for name, counted in sessions.items())
            self._database.executemany(SET_SESSION, rows)

    def forget(self, hours_before: float, sessions_before: float) -> None:
        """Delete what is older than these Unix times."""
        with transaction(self._database):
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
        """Return the sums over the hours that begin in [`start`, `end`), within `scope`. Rows are
        sorted by time, or by use of the device, the largest first."""
        groups = sorted(scope.groups)
        order = "1" if by in ("day", "hour") else "2 DESC, 1"
        query = (
            f"SELECT {KEYS[by]}, {SUMS} FROM used WHERE hour >= ? AND hour < ?"
            f' AND (? OR user = ? OR "group" IN ({", ".join("?" * len(groups))}))'
            f" GROUP BY 1 ORDER BY {order}"
        )
        given = (start, end, scope.everything, scope.user, *groups)
        return [AccountRow(*row) for row in self._database.execute(query, given)]


def _columns(prefix: str) -> Iterable[str]:
    return (prefix.format(name) for name in DeviceUse._fields)


SUMS = ", ".join(_columns("sum({0})"))
ADD_USE = (
    f"INSERT INTO used VALUES ({', '.join('?' * (len(Key._fields) + len(DeviceUse._fields)))})"
    f" ON CONFLICT DO UPDATE SET {', '.join(_columns('{0} = {0} + excluded.{0}'))}"
)
SET_SESSION = f"INSERT OR REPLACE INTO sessions VALUES ({', '.join('?' * 5)})"
