"""If a clock leaps, no user is charged for the time of the leap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare import broker
from jupyter_gpushare.broker.accounting.accounts import AccountBook
from jupyter_gpushare.broker.accounting.ledger import Scope
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.clock import LONGEST_SECONDS, SteadyClock
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire.messages import AccountRow, Request
from jupyter_gpushare.wire.snapshot import SessionView

from .test_service import GB, Notebook

TEN_HOURS = 36_000.0
TICK_SECONDS = 0.1
HOST = Device("host", 64 * GB, "main memory")
BROKER = Path(broker.__file__).parent
PARTS = [  # of the service, and what calls it
    *BROKER.glob("*.py"),
    *(path for room in ("admin", "grants", "snapshot") for path in (BROKER / room).glob("*.py")),
    *(BROKER / "transport" / name for name in ("connection.py", "server.py")),
]


class Machine:
    """A machine with two clocks, which may be set or leap, and a broker that reads them ten times a
    second."""

    def __init__(self) -> None:
        self.monotonic, self.unix = 1_000.0, 1_790_000_000.0
        self.clock = SteadyClock(lambda: self.monotonic)
        self.accounts = AccountBook(clock=lambda: self.unix, now=self.clock())
        self.service = Service(
            load({}), [HOST], started=0.0, clock=lambda: self.unix, accounts=self.accounts
        )

    def runs(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.monotonic += TICK_SECONDS
            self.unix += TICK_SECONDS
            self.service.tick(self.clock())

    def views(self) -> dict[str, SessionView]:
        device_snapshot = self.service.snapshot(self.clock())
        return {view.name: view for view in device_snapshot.devices[0].sessions}

    def charged(self) -> list[AccountRow]:
        return self.accounts.rows("user", 0.0, 1e12, Scope(everything=True)).result()


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.accounts.close()


def test_a_steady_clock_follows_its_source_but_for_leaps() -> None:
    times = iter([5.0, 5.5, 6.0, 6.0 + TEN_HOURS, 6.5 + TEN_HOURS, 1.0, 2.0])
    clock = SteadyClock(lambda: next(times))
    assert [clock() for _ in range(3)] == [5.5, 6.0, 6.0 + LONGEST_SECONDS]
    after = 6.5 + LONGEST_SECONDS
    assert clock() == pytest.approx(after)
    assert clock.when(after + 3.0) == pytest.approx(9.5 + TEN_HOURS)
    assert clock() == pytest.approx(after)  # set back: it stands
    assert clock() == pytest.approx(after + 1.0)


def test_time_without_any_session_counts_whole() -> None:
    times = iter([0.0, TEN_HOURS, TEN_HOURS + 1.0])
    clock = SteadyClock(lambda: next(times))
    assert clock.resume() == TEN_HOURS
    assert clock() == TEN_HOURS + 1.0


@pytest.mark.parametrize("what", ["monotonic", "unix"])
def test_two_leaps_of_ten_hours_charge_no_hours(machine: Machine, what: str) -> None:
    holder, waiting = Notebook(machine.service, "holds"), Notebook(machine.service, "waits")
    holder.says(Request(1), machine.clock())
    waiting.says(Request(1), machine.clock())
    machine.runs(5.0)
    for _ in range(2):
        setattr(machine, what, getattr(machine, what) + TEN_HOURS)
        machine.runs(5.0)
    most = 15.0 + (2 * LONGEST_SECONDS if what == "monotonic" else 0.0) + TICK_SECONDS
    views = machine.views()
    assert 14.9 <= views["holds"].device_seconds <= most
    assert 14.9 <= views["waits"].waited_seconds <= most
    used = sum(row.device_seconds for row in machine.charged())
    waited = sum(row.waited_seconds for row in machine.charged())
    assert 14.0 <= used <= most
    assert 14.0 <= waited <= most


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.relative_to(BROKER).as_posix())
def test_the_service_uses_a_single_clock(path: Path) -> None:
    """With a reading of a second clock the leap would count after all. Only the rate limiter has
    its own clock."""
    source = path.read_text()
    assert source.replace("_budget.begin(time.monotonic())", "").count("time.monotonic()") == 0
