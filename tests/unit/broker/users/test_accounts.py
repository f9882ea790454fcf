"""Usage by user: counted with time set by a test, and kept in real files."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from jupyter_gpushare.broker.access.permissions import Person
from jupyter_gpushare.broker.accounting.accounts import (
    GAP_SECONDS,
    MAX_NAMES,
    OTHERS,
    RETURN_SECONDS,
    AccountBook,
    Seen,
)
from jupyter_gpushare.broker.accounting.ledger import MIGRATIONS, Scope, UsageDatabase
from jupyter_gpushare.broker.accounting.reports import REPORTS_OF_A_USER, Reports
from jupyter_gpushare.broker.admin.rulebook import Zone
from jupyter_gpushare.errors import LimitExceeded
from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.wire import messages as m

from ..listener import Listener

ALL = Scope(everything=True)
NOON = time.mktime((2026, 11, 17, 12, 0, 0, 0, 0, -1))
DAY = 86400


class Clock:
    """Time set by a test: `now` is monotonic, and `unix` is wall time."""

    def __init__(self, unix: float = NOON) -> None:
        self.now, self.unix = 100.0, unix

    def __call__(self) -> float:
        return self.unix

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.unix += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "accounts.sqlite"


@pytest.fixture
def accounts(path: Path, clock: Clock) -> Iterator[AccountBook]:
    with opened_at(path, clock) as opened:
        yield opened


def opened_at(path: Path, clock: Clock) -> contextlib.closing[AccountBook]:
    return contextlib.closing(AccountBook(UsageDatabase(path), clock=clock, now=clock.now))


def looks(accounts: AccountBook, clock: Clock, seconds: float, sessions: dict[str, Seen]) -> None:
    """Let this time pass, and count."""
    clock.passes(seconds)
    accounts.follow(clock.now, sessions)


def seen(device_seconds: float = 0.0, **more: object) -> Seen:
    fields = {
        "user": "ada",
        "group": "ml",
        "notebook": "cnn.ipynb",
        "device": "host",
        "waited_seconds": 0.0,
        "persistent_bytes": 0,
        "lane_bytes": 0,
        **more,
    }
    return Seen(device_seconds=device_seconds, **fields)  # type: ignore[arg-type]


def rows(accounts: AccountBook, by: str = "user", scope: Scope = ALL) -> list[m.AccountRow]:
    return accounts.rows(by, 0.0, 1e12, scope).result()


def row(accounts: AccountBook, by: str = "user") -> m.AccountRow:
    (only,) = rows(accounts, by)
    return only


# --- counting -------------------------------------------------------------------------------------


def test_usage_between_two_looks_is_counted(accounts: AccountBook, clock: Clock) -> None:
    accounts.follow(clock.now, {"a": seen()})
    clock.passes(4.0)
    accounts.granted("a")
    now = seen(3.0, waited_seconds=1.0, persistent_bytes=100, lane_bytes=10)
    accounts.follow(clock.now, {"a": now})
    assert row(accounts) == m.AccountRow("ada", 3.0, 1.0, 400.0, 30.0, 1)


def test_no_user_is_charged_for_more_time_than_has_passed(
    accounts: AccountBook, clock: Clock
) -> None:
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, 2.0, {"a": seen(1e9, waited_seconds=1e9)})
    assert (row(accounts).device_seconds, row(accounts).waited_seconds) == (2.0, 2.0)


def test_a_session_that_says_it_had_less_gets_nothing_back(
    accounts: AccountBook, clock: Clock
) -> None:
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, 2.0, {"a": seen(2.0)})
    looks(accounts, clock, 1.0, {"a": seen(0.0)})
    looks(accounts, clock, 1.0, {"a": seen(1.0)})
    assert row(accounts).device_seconds == 3.0


def test_memory_that_was_unseen_for_long_is_not_counted(
    accounts: AccountBook, clock: Clock
) -> None:
    accounts.follow(clock.now, {"a": seen(persistent_bytes=100)})
    looks(accounts, clock, GAP_SECONDS + 1.0, {"a": seen(persistent_bytes=100)})
    assert rows(accounts) == []


def test_a_clock_that_is_set_back_between_two_brokers_charges_no_user_less_than_nothing(
    path: Path, clock: Clock
) -> None:
    with opened_at(path, clock) as first:
        first.follow(clock.now, {"a": seen(persistent_bytes=100)})
        looks(first, clock, 1.0, {"a": seen(1.0, persistent_bytes=100)})
    clock.unix -= 7.0
    with opened_at(path, clock) as second:
        second.follow(clock.now, {"a": seen(2.0, persistent_bytes=100)})
        assert row(second) == m.AccountRow("ada", 1.0, 0.0, 100.0, 0.0, 0)


def test_a_clock_that_is_set_right_again_finds_the_usage_of_that_day(
    accounts: AccountBook, clock: Clock
) -> None:
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, 2.0, {"a": seen(2.0)})
    for step in (3 * DAY, -3 * DAY):
        clock.unix += step
        accounts.follow(clock.now, {"a": seen(2.0)})
    assert accounts.used_today("ada") == 2.0


def test_sums_are_by_user_group_notebook_day_and_hour(accounts: AccountBook, clock: Clock) -> None:
    first = {"a": seen(), "b": seen(user="bob", group="", notebook="x.ipynb")}
    accounts.follow(clock.now, first)
    then = {"a": seen(1.0), "b": seen(0.5, user="bob", group="", notebook="x.ipynb")}
    looks(accounts, clock, 1.0, then)
    looks(accounts, clock, 3600.0, {"a": seen(2.0)})

    def sums(by: str) -> dict[str, float]:
        return {row.name: row.device_seconds for row in rows(accounts, by)}

    assert sums("user") == {"ada": 2.0, "bob": 0.5}
    assert sums("group") == {"": 0.5, "ml": 2.0}
    assert sums("notebook") == {"ada: cnn.ipynb": 2.0, "bob: x.ipynb": 0.5}
    assert sums("day") == {"2026-11-17": 2.5}
    assert sums("hour") == {"2026-11-17 12:00": 1.5, "2026-11-17 13:00": 1.0}


@pytest.fixture
def in_india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this machine is that of India."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["", "UTC"])
@pytest.mark.usefixtures("in_india")
def test_no_hour_of_a_report_belongs_to_two_days(
    accounts: AccountBook, clock: Clock, zone: str
) -> None:
    accounts.follow_rules(400, Zone(zone))
    _, midnight = Zone().day_of(NOON)
    clock.passes(midnight - 5.0 - clock.unix)
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, 4.0, {"a": seen(4.0)})
    looks(accounts, clock, 11.0, {"a": seen(14.0)})
    assert [row.device_seconds for row in rows(accounts, "day")] == [4.0, 10.0]


def test_the_largest_use_comes_first_and_days_and_hours_come_in_their_order(
    accounts: AccountBook, clock: Clock
) -> None:
    uses = {"ada": 1.0, "bob": 3.0, "cyd": 1.0, "dan": 2.0}
    accounts.follow(clock.now, {name: seen(user=name) for name in uses})
    for part in (0.75, 1.0):
        then = {name: seen(part * use, user=name) for name, use in uses.items()}
        looks(accounts, clock, 3600.0, then)
    assert [row.name for row in rows(accounts)] == ["bob", "dan", "ada", "cyd"]
    hours = [row.name for row in rows(accounts, "hour")]
    assert len(hours) == 2
    assert hours == sorted(hours)


def test_a_span_has_the_hours_that_begin_in_it(accounts: AccountBook, clock: Clock) -> None:
    accounts.follow(clock.now, {"a": seen()})
    for total in (1.0, 2.0):
        looks(accounts, clock, 3600.0, {"a": seen(total)})
    (one,) = accounts.rows("user", NOON + 3600, NOON + 7200, ALL).result()
    assert one.device_seconds == 1.0


def test_a_user_with_countless_notebooks_has_some_rows_an_hour(
    accounts: AccountBook, clock: Clock
) -> None:
    for total in (0.0, 0.1):
        names = range(MAX_NAMES + 50)
        accounts.follow(clock.now, {f"s{n}": seen(total, notebook=f"n{n}") for n in names})
        clock.passes(1.0)
    found = {row.name: row.device_seconds for row in rows(accounts, "notebook")}
    assert len(found) == MAX_NAMES + 1
    assert found[f"ada: {OTHERS}"] == pytest.approx(5.0)


# --- today ----------------------------------------------------------------------------------------


def test_a_day_begins_at_midnight_in_the_time_zone_of_the_rules(
    accounts: AccountBook, clock: Clock
) -> None:
    """Kiritimati is 14 hours before Greenwich, and Pago Pago 11 behind it."""
    midnight, _ = Zone("Pacific/Kiritimati").day_of(NOON)
    clock.passes(midnight - 3600.0 - clock.unix)
    for total in (0.0, 3600.0, 5400.0):
        accounts.follow(clock.now, {"a": seen(total)})
        clock.passes(3600.0)
    accounts.follow_rules(400, Zone("Pacific/Kiritimati"))
    assert accounts.used_today("ada") == 5400.0
    accounts.follow_rules(400, Zone("Pacific/Pago_Pago"))
    assert accounts.used_today("ada") == 1800.0
    clock.passes(23 * 3600.0)
    accounts.follow_rules(400, Zone("Pacific/Kiritimati"))
    assert accounts.used_today("ada") == 0.0


@pytest.mark.parametrize("zone", ["", "Asia/Kolkata", "Asia/Kathmandu"])
def test_a_new_broker_knows_the_usage_of_today(path: Path, clock: Clock, zone: str) -> None:
    """Midnight is within an hour of UTC in India and Nepal."""
    midnight, _ = Zone(zone).day_of(NOON)
    clock.passes(midnight - 5.0 - clock.unix)
    with opened_at(path, clock) as before:
        before.follow_rules(400, Zone(zone))
        before.follow(clock.now, {"a": seen()})
        looks(before, clock, 4.0, {"a": seen(4.0)})
        looks(before, clock, 11.0, {"a": seen(14.0)})
    clock.passes(60.0)
    with opened_at(path, clock) as after:
        after.follow_rules(400, Zone(zone))
        assert (after.used_today("ada"), after.used_today_by_group("ml")) == (10.0, 10.0)


def test_midnight_is_this_machines() -> None:
    start, end = Zone().day_of(NOON)
    assert (time.localtime(start)[:5], end - start) == ((2026, 11, 17, 0, 0), DAY)


# --- crashes --------------------------------------------------------------------------------------


def test_a_stranger_that_claims_a_session_inherits_nothing(path: Path, clock: Clock) -> None:
    with opened_at(path, clock) as before:
        before.follow(clock.now, {"a": seen()})
        looks(before, clock, 1.0, {"a": seen(1.0)})
    clock.passes(100.0)
    with opened_at(path, clock) as after:
        after.follow(clock.now, {"a": seen(90.0, user="eve")})
        assert [row.name for row in rows(after)] == ["ada"]


def test_a_session_that_was_away_for_long_begins_anew(accounts: AccountBook, clock: Clock) -> None:
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, RETURN_SECONDS + 1.0, {})
    accounts.follow(clock.now, {"a": seen(700.0)})
    assert rows(accounts) == []


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_its_owners_alone(accounts: AccountBook, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_others_read_while_the_broker_writes(
    accounts: AccountBook, path: Path, clock: Clock
) -> None:
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM used").fetchone() == (0,)
    accounts.follow(clock.now, {"a": seen()})
    looks(accounts, clock, 1.0, {"a": seen(1.0)})
    assert row(accounts).device_seconds == 1.0
    assert reader.execute("SELECT count(*) FROM used").fetchone() == (0,)  # as it was at BEGIN
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM used").fetchone() == (1,)
    reader.close()


def test_old_figures_go(path: Path, clock: Clock) -> None:
    with opened_at(path, clock) as old:
        old.follow(clock.now, {"a": seen()})
        looks(old, clock, 1.0, {"a": seen(1.0)})
    clock.passes(40 * DAY)
    with opened_at(path, clock) as after:
        after.follow_rules(41, Zone())
        after.follow(clock.now, {})
        assert len(rows(after)) == 1
        after.follow_rules(39, Zone())
        looks(after, clock, 3600.0, {})
        assert rows(after) == []


@pytest.fixture
def lacking(path: Path) -> Settings:
    return load({}, accounts=str(path))


def test_a_file_that_is_no_database_costs_one_warning_and_no_turn(
    lacking: Settings, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text("Dear diary, today I have trained a network." * 100)
    accounts = AccountBook.of(lacking)
    accounts.follow(1.0, {"a": seen()})
    accounts.follow(2.0, {"a": seen(1.0)})
    assert row(accounts).device_seconds == 1.0
    assert str(path) in accounts.trouble
    assert len(caplog.records) == 1
    accounts.close()
    assert path.read_text().startswith("Dear diary")


def test_a_directory_that_cannot_be_written_to_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    accounts = AccountBook.of(load({}, accounts=str(tmp_path / "file" / "accounts.sqlite")))
    assert "cannot be used" in accounts.trouble
    assert len(caplog.records) == 1
    accounts.close()


def test_a_database_of_a_newer_version_is_left_alone(lacking: Settings, path: Path) -> None:
    UsageDatabase(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    accounts = AccountBook.of(lacking)
    assert "newer version" in accounts.trouble
    accounts.close()


@pytest.mark.system
def test_figures_that_could_not_be_written_are_written_later(
    accounts: AccountBook, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    accounts.follow(clock.now, {"a": seen()})
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # it holds the file for longer than we wait
    looks(accounts, clock, 6.0, {"a": seen(1.0)})
    assert accounts._sent[-1][0].exception() is not None
    looks(accounts, clock, 6.0, {"a": seen(2.0)})
    assert "cannot be written now" in accounts.trouble
    other.execute("ROLLBACK")
    other.close()
    looks(accounts, clock, 6.0, {"a": seen(3.0)})
    rows(accounts)
    looks(accounts, clock, 6.0, {"a": seen(3.0)})
    assert (row(accounts).device_seconds, accounts.trouble) == (3.0, "")
    assert len(caplog.records) == 1


def test_the_default_is_in_the_users_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    accounts = AccountBook.of(load({}))
    accounts.close()
    assert (tmp_path / "jupyter_gpushare" / "accounts.sqlite").exists()


# --- reports, which a thread makes while the broker continues -------------------------------------

ADA = Person("ada")
MESSAGE = m.Account(0.0, 1.0, "notebook")


class MadeMeanwhile(Future[list[m.AccountRow]]):
    """A report that the thread finishes right after the broker has checked it."""

    def done(self) -> bool:
        was_done = super().done()
        if not was_done:
            self.set_result([])
        return was_done


class Slow(AccountBook):
    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[m.AccountRow]]:
        return MadeMeanwhile()


class Broken(AccountBook):
    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[m.AccountRow]]:
        rows: Future[list[m.AccountRow]] = Future()
        rows.set_exception(OSError("disk I/O error"))
        return rows


class Queued(AccountBook):
    """Accounts of which the thread has not begun to read a report."""

    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[m.AccountRow]]:
        self.asked: Future[list[m.AccountRow]] = Future()
        return self.asked


@pytest.mark.parametrize("is_read", [False, True])
def test_a_report_of_a_connection_that_has_ended_is_not_made_or_counts_while_it_is_read(
    is_read: bool,
) -> None:
    with contextlib.closing(Queued()) as accounts:
        reports = Reports(accounts)
        for _ in range(REPORTS_OF_A_USER):
            reports.ask(gone := Listener("ada"), ADA, MESSAGE)
            if is_read:
                accounts.asked.set_running_or_notify_cancel()
            reports.forget(gone)
            assert accounts.asked.cancelled() is not is_read
        refused = pytest.raises(LimitExceeded, match=f"{REPORTS_OF_A_USER} reports of a user")
        with refused if is_read else contextlib.nullcontext():
            reports.check(Listener("ada"))


def test_a_report_that_arrives_while_the_broker_looks_is_not_lost() -> None:
    with contextlib.closing(Slow()) as accounts:
        reports, ada = Reports(accounts), Listener("ada")
        reports.ask(ada, ADA, MESSAGE)
        reports.answer()
        assert ada.heard == []
        with pytest.raises(LimitExceeded, match="waits for one already"):
            reports.check(ada)
        reports.answer()
        assert ada.heard == [m.Accounts([], "")]
        reports.check(ada)


def test_a_report_that_cannot_be_made_is_one_sentence() -> None:
    with contextlib.closing(Broken()) as accounts:
        reports, ada = Reports(accounts), Listener("ada")
        reports.ask(ada, ADA, MESSAGE)
        reports.answer()
        (error,) = ada.heard_of(m.Error)
        assert error.message == "the accounts cannot be read: disk I/O error"
