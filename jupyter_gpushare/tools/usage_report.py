"""Asks the broker for the usage by user or another key. The broker answers only what the asker may
see."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from typing import TypeVar, get_args

import msgspec

from ..errors import InvalidValue, ProtocolError
from ..format import duration
from ..tables import Column, Table, table_of
from ..wire.client import Client
from ..wire.jobs import LookAtUse, UseBy, UseRow
from ..wire.messages import Account, AccountRow, Accounts, By

Chosen = TypeVar("Chosen", bound=str)
BYS: tuple[By, ...] = get_args(By)
USE_BYS: tuple[UseBy, ...] = get_args(UseBy)
# spreadsheets take a cell with such a beginning for a formula
FORMULA = ("=", "+", "-", "@", "\t", "\r")
REPORT_SECONDS = 60.0  # enough for the broker to read a large database
GIB_HOUR = float(1 << 30) * 3600


def question(first: str = "", last: str = "", by: str = "user") -> Account:
    """Return the question for the time from the beginning of `first` to the end of `last`, which
    are days or times of this machine's clock.

    The defaults are the first of this month, and now. Raises InvalidValue.
    """
    start, end = _span(first, last)
    return Account(start, end, _chosen(by, BYS, "a report"))


def question_of_jobs(first: str = "", last: str = "", by: str = "user") -> LookAtUse:
    """Return the same question about jobs."""
    start, end = _span(first, last)
    return LookAtUse(start, end, _chosen(by, USE_BYS, "a report of jobs"))


def _chosen(by: str, of: tuple[Chosen, ...], what: str) -> Chosen:
    for one in of:
        if by == one:
            return one
    raise InvalidValue(f"{what} is by {', '.join(of[:-1])} or {of[-1]}, not {by!r}")


def _span(first: str, last: str) -> tuple[float, float]:
    start = _unix(_begin(first) if first else date.today().replace(day=1))
    end = _unix(_end(last) if last else datetime.fromtimestamp(time.time() + 1))
    if start >= end:
        began, ended = first or "the first of this month", last or "now"
        raise InvalidValue(f"a report ends after it begins, but {ended} is before {began}")
    return start, end


def ask(client: Client, asked: Account) -> Accounts:
    answer = client.ask(asked, seconds=REPORT_SECONDS)
    if not isinstance(answer, Accounts):
        raise ProtocolError(f"Accounts were asked for, {type(answer).__name__} came")
    return answer


def picture(asked: Account, rows: list[AccountRow]) -> Table:
    columns = [
        Column(asked.by.capitalize(), lambda row: row.name or "(none)", cut=60),
        Column("Device time", lambda row: duration(row.device_seconds), right=True),
        Column("Waited", lambda row: duration(row.waited_seconds), right=True),
        Column("Turns", lambda row: str(row.turns), right=True, spare=1),
        Column("Memory, GiB·h", lambda row: _gib_hours(row.persistent_byte_seconds), right=True),
        Column("Lanes, GiB·h", lambda row: _gib_hours(row.lane_byte_seconds), right=True),
    ]
    return table_of(f"Used from {_shown(asked.start)} to {_shown(asked.end)}", columns, rows)


def picture_of_jobs(asked: LookAtUse, rows: list[UseRow]) -> Table:
    columns = [
        Column(asked.by.capitalize(), lambda row: row.name or "(none)", cut=60),
        Column("GPU time", lambda row: duration(row.gpu_seconds), right=True),
        Column("Jobs", lambda row: str(row.jobs), right=True),
    ]
    title = f"Used by jobs from {_shown(asked.start)} to {_shown(asked.end)}"
    return table_of(title, columns, rows)


def as_csv(
    asked: Account | LookAtUse,
    rows: Sequence[AccountRow | UseRow],
    kind: type[msgspec.Struct] = AccountRow,
) -> str:
    """Return a header line and a line for each row, in seconds and byte-seconds."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow([asked.by, *kind.__struct_fields__[1:]])
    for row in rows:
        name, *figures = msgspec.structs.astuple(row)
        lines.writerow([_no_formula(name), *figures])
    return text.getvalue()


def _no_formula(name: str) -> str:
    """Escape a name that begins like a formula. Names come from a hub or a user, and a spreadsheet
    would compute the formula."""
    return f"'{name}" if name.startswith(FORMULA) else name


def _begin(text: str) -> date:
    try:
        is_day = len(text) == len("2026-11-01")
        found = date.fromisoformat(text) if is_day else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(
            f"a date is written 2026-11-01 or 2026-11-01T14:00, not {text!r}"
        ) from None
    if found.year in (MINYEAR, MAXYEAR):  # the day before or after may not exist
        raise InvalidValue(f"there are no accounts of the year {found.year}")
    return found


def _end(text: str) -> date:
    """Return the time; for a day, its last moment."""
    found = _begin(text)
    return found if isinstance(found, datetime) else found + timedelta(days=1)


def _unix(moment: date) -> float:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    return max(0.0, moment.timestamp())


def _shown(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix):%Y-%m-%d %H:%M}"


def _gib_hours(byte_seconds: float) -> str:
    return f"{byte_seconds / GIB_HOUR:.2f}"
