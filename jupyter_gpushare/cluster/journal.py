"""The state of each job, in a SQLite database. Each transition of a job is one transaction, and is
on disk before the service acts on it.

It keeps states, and not only events: a newer version might derive other states from old events.
Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import msgspec

from ..database import opened, transaction
from ..errors import LimitExceeded
from ..wire.jobs import OVER, LookAtUse, UseRow
from .engines.engine import Capacity
from .jobs import JobRecord

MOST_HOLDER_BYTES = 4096
MIGRATIONS = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        user TEXT NOT NULL,
        directory TEXT NOT NULL,
        spec TEXT NOT NULL,  -- JSON
        submitted REAL NOT NULL,  -- times are Unix seconds
        state TEXT NOT NULL,
        since REAL NOT NULL,
        generation INTEGER NOT NULL,
        place TEXT NOT NULL,  -- JSON
        handle TEXT NOT NULL,
        resume TEXT NOT NULL,
        told REAL NOT NULL,
        reason TEXT NOT NULL,
        is_cancelled INTEGER NOT NULL,
        first REAL,
        ended REAL,
        yields INTEGER NOT NULL,
        losses INTEGER NOT NULL,
        sentence TEXT NOT NULL,
        core TEXT NOT NULL,  -- JSON
        saved REAL NOT NULL
    );
    CREATE TABLE events (
        at REAL NOT NULL,
        job TEXT NOT NULL,
        generation INTEGER NOT NULL,
        what TEXT NOT NULL,
        detail TEXT NOT NULL
    );
    CREATE INDEX events_of_jobs ON events (job);
    CREATE TABLE nodes (  -- in the order in which they came, with the most GPUs that each has had
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        gpus INTEGER NOT NULL
    );
    CREATE TABLE cluster (name TEXT NOT NULL);  -- one row
    INSERT INTO cluster VALUES (lower(hex(randomblob(4))));
    """,
    "ALTER TABLE jobs ADD COLUMN keeps INTEGER NOT NULL DEFAULT 0;",
    """
    CREATE TABLE uses (
        hour INTEGER NOT NULL,  -- in Unix seconds, when it began
        user TEXT NOT NULL,
        job TEXT NOT NULL,
        gpu_seconds REAL NOT NULL,
        PRIMARY KEY (hour, user, job)
    ) WITHOUT ROWID;
    """,
    # GPUs that are divided into shards; `gpus` are whole ones.
    "ALTER TABLE nodes ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;",
    """
    ALTER TABLE jobs ADD COLUMN skew REAL NOT NULL DEFAULT 0;
    CREATE INDEX events_of_kinds ON events (what);
    """,
    """
    ALTER TABLE nodes ADD COLUMN seen REAL NOT NULL DEFAULT 0;  -- when the engine has named it last
    CREATE INDEX ended_jobs ON jobs (ended);
    """,
)
AS_SUBMITTED = "ORDER BY submitted, rowid"
COLUMNS = JobRecord.__struct_fields__
IN_JSON = ("spec", "place", "core")
SET_JOB = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS)}"
)
ADD_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?)"
SET_NODE = (
    "INSERT INTO nodes (name, gpus, shared, seen) VALUES (?, ?, ?, ?) ON CONFLICT (name)"
    " DO UPDATE SET gpus = excluded.gpus, shared = excluded.shared, seen = excluded.seen"
)

ADD_USE = (
    "INSERT INTO uses VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET gpu_seconds = gpu_seconds + excluded.gpu_seconds"
)
# Measures from the request to yield to the end of that generation, and from the start of the next
# one until it computes.
RESTARTS = """
    SELECT yielded.at - ask.at + computes.at - start.at
    FROM events AS computes
    JOIN events AS start USING (job, generation)
    JOIN events AS yielded
        ON yielded.job = computes.job AND yielded.generation = computes.generation - 1
    JOIN events AS ask ON ask.job = yielded.job AND ask.generation = yielded.generation
    WHERE computes.what = 'computes' AND start.what = 'start'
        AND yielded.what = 'yielded' AND ask.what = 'ask'
    ORDER BY computes.rowid DESC LIMIT ?
"""
# The use of removed jobs is still there.
SERVICES = """
    SELECT sum(gpu_seconds) FROM uses WHERE job NOT IN (SELECT id FROM jobs WHERE ended IS NULL)
    GROUP BY job HAVING sum(gpu_seconds) > 0 ORDER BY max(hour) DESC LIMIT ?
"""
NAMES = {"user": "user", "job": "job", "day": "date(hour, 'unixepoch', 'localtime')"}


class HourOfJob(NamedTuple):
    """The computation of a job in an hour."""

    hour: int  # its beginning, in Unix seconds
    user: str
    job: str
    gpu_seconds: float


class JobEvent(NamedTuple):
    at: float
    job: str
    generation: int
    what: str
    detail: str = ""


class Journal:
    """Owns the database in the file at `path` exclusively. A call that raises OSError or
    sqlite3.Error has written nothing."""

    def __init__(self, path: Path, socket: Path | str = "") -> None:
        """Lock the journal for the service that listens at `socket`. Raises LimitExceeded if
        another service has it."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = locked(
            path.with_suffix(".lock"), LockHolder(gethostname(), os.getpid(), str(socket))
        )
        try:
            # TRUNCATE, since WAL needs shared memory, which network file systems lack. FULL, so
            # that a power cut loses no change of a state.
            pragmas = ("journal_mode = TRUNCATE", "synchronous = FULL")
            self._database = opened(path, MIGRATIONS, *pragmas)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()
        os.close(self._lock)

    def write(self, job: JobRecord, event: JobEvent, uses: Iterable[HourOfJob] = ()) -> None:
        """Write a job's change of state and its new row, and add its usage since the last row. In
        one transaction, so usage is counted exactly once even if the service is killed."""
        with transaction(self._database):
            self._database.execute(SET_JOB, row_of(job))
            self._database.execute(ADD_EVENT, event)
            self._database.executemany(ADD_USE, uses)

    def save(self, jobs: Iterable[JobRecord], uses: Iterable[HourOfJob] = ()) -> None:
        """Write rows of jobs whose state has not changed, with their usage since their last
        rows."""
        with transaction(self._database):
            self._database.executemany(SET_JOB, map(row_of, jobs))
            self._database.executemany(ADD_USE, uses)

    def uses(self, asked: LookAtUse, user: str | None) -> list[UseRow]:
        """Return the use by all users, or by one."""
        order = "1" if asked.by == "day" else "2 DESC, 1"
        of = "" if user is None else " AND user = ?"
        rows = self._database.execute(
            f"SELECT {NAMES[asked.by]}, sum(gpu_seconds), count(DISTINCT job) FROM uses"
            f" WHERE hour >= ? AND hour < ?{of} GROUP BY 1 ORDER BY {order}",
            (asked.start, asked.end, *(() if user is None else (user,))),
        )
        return [UseRow(*row) for row in rows]

    def set_nodes(self, nodes: Mapping[str, Capacity], event: JobEvent) -> None:
        rows = [(name, *gpus, event.at) for name, gpus in nodes.items()]
        with transaction(self._database):
            self._database.executemany(SET_NODE, rows)
            self._database.execute(ADD_EVENT, event)

    def note(self, event: JobEvent) -> None:
        with transaction(self._database):
            self._database.execute(ADD_EVENT, event)

    def cluster(self) -> str:
        """Return the cluster's name, by which engines find its processes. No other journal has this
        name."""
        (name,) = self._database.execute("SELECT name FROM cluster").fetchone()
        return str(name)

    def nodes(self) -> dict[str, Capacity]:
        rows = self._database.execute("SELECT name, gpus, shared FROM nodes ORDER BY number")
        return {name: Capacity(*gpus) for name, *gpus in rows}

    def present(self) -> list[JobRecord]:
        """Return jobs that have not ended, in the order in which they were submitted."""
        over = ", ".join("?" * len(OVER))
        return self._jobs(f"WHERE state NOT IN ({over}) {AS_SUBMITTED}", sorted(OVER))

    def newest(self, count: int) -> list[JobRecord]:
        """Return the newest `count` jobs, including finished ones, in the order in which they were
        submitted."""
        newest = "SELECT rowid FROM jobs ORDER BY submitted DESC, rowid DESC LIMIT ?"
        return self._jobs(f"WHERE rowid IN ({newest}) {AS_SUBMITTED}", (count,))

    def job(self, id: str) -> JobRecord | None:
        return next(iter(self._jobs("WHERE id = ?", (id,))), None)

    def events(self, job: str) -> list[JobEvent]:
        rows = self._database.execute("SELECT * FROM events WHERE job = ? ORDER BY rowid", (job,))
        return [JobEvent(*row) for row in rows]

    def restarts(self, count: int) -> list[float]:
        """Return the costs of the newest `count` restarts: the seconds for which the GPUs of a
        stopped and restarted job did not compute."""
        return [seconds for (seconds,) in self._database.execute(RESTARTS, (count,))]

    def services(self, count: int) -> list[float]:
        """Return the GPU-seconds that the newest finished jobs have computed."""
        return [seconds for (seconds,) in self._database.execute(SERVICES, (count,))]

    def over_before(self, at: float) -> JobRecord | None:
        """Return a job that ended before that time."""
        return next(iter(self._jobs("WHERE ended < ? LIMIT 1", (at,))), None)

    def forget(self, job: str) -> None:
        """Remove a job. Its use of GPUs stays."""
        with transaction(self._database):
            self._database.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def see_nodes(self, now: float, names: Iterable[str]) -> None:
        """Note that the engine has named these nodes now."""
        with transaction(self._database):
            rows = [(now, name) for name in names]
            self._database.executemany("UPDATE nodes SET seen = ? WHERE name = ?", rows)

    def remove_old(self, before: float, uses_before: float, held: Collection[str]) -> None:
        """Remove events and uses before these times, and nodes that the engine has not named since
        and that are not `held`."""
        old = self._database.execute("SELECT name FROM nodes WHERE seen < ?", (before,))
        gone = [(name,) for (name,) in old if name not in held]
        with transaction(self._database):
            self._database.execute("DELETE FROM events WHERE at < ?", (before,))
            self._database.execute("DELETE FROM uses WHERE hour < ?", (uses_before,))
            self._database.executemany("DELETE FROM nodes WHERE name = ?", gone)

    def _jobs(self, condition: str, given: Iterable[str | float]) -> list[JobRecord]:
        query = f"SELECT {', '.join(COLUMNS)} FROM jobs {condition}"
        return [job_of(row) for row in self._database.execute(query, tuple(given))]


class LockHolder(msgspec.Struct, frozen=True):
    """The service that has a journal. It may run on another machine with the same files."""

    host: str
    pid: int
    socket: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which listens on {self.socket}"


def locked(path: Path, holder: LockHolder) -> int:
    """Lock a file for the life of this process, and write its name there. Returns the
    descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, msgspec.json.encode(holder), 0)
        os.fsync(file)
    except BlockingIOError:
        other = holder_in(file)
        os.close(file)
        raise LimitExceeded(
            f"another cluster service has {path.parent}: {other}; one directory is for one service"
        ) from None
    except OSError:
        os.close(file)
        raise
    return file


def holder_in(file: int) -> str:
    """Return the owner of a lock file, which may not be fully written yet."""
    try:
        return str(msgspec.json.decode(os.pread(file, MOST_HOLDER_BYTES, 0), type=LockHolder))
    except msgspec.DecodeError:
        return "one that is just starting"


def row_of(job: JobRecord) -> list[Any]:
    values = msgspec.structs.asdict(job)
    for name in IN_JSON:
        values[name] = msgspec.json.encode(values[name]).decode()
    return [values[name] for name in COLUMNS]


def job_of(row: tuple[Any, ...]) -> JobRecord:
    values = dict(zip(COLUMNS, row, strict=True))
    for name in IN_JSON:
        values[name] = msgspec.json.decode(values[name])
    return msgspec.convert(values, JobRecord, strict=False)
