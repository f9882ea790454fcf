"""SQLite databases of this user alone, with schemas that newer versions migrate."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BUSY_SECONDS = 0.5  # how long a write waits for another program before it is tried again later


def opened(path: Path | None, migrations: Sequence[str], *pragmas: str) -> sqlite3.Connection:
    """Return the database in the file at `path`, or in memory. Raises OSError or sqlite3.Error.

    Entry n of `migrations` migrates schema n to n + 1; PRAGMA user_version counts those that are
    done.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(
        path or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in pragmas:
            database.execute(f"PRAGMA {pragma}")
        _migrate(database, migrations)
    except BaseException:
        database.close()
        raise
    return database


def _migrate(database: sqlite3.Connection, migrations: Sequence[str]) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise sqlite3.DatabaseError(f"it is of a newer version, with schema {version}")
    for number in range(version, len(migrations)):
        done = f"PRAGMA user_version = {number + 1}"
        database.executescript(f"BEGIN; {migrations[number]} {done}; COMMIT;")


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit everything that the block writes, or nothing. A `with` block of the connection itself
    would not begin a transaction."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
