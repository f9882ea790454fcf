"""The estimate of when a session has done its iterations, at its present share, waits included."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.finish_time import MOST_REPORTS, FinishTime
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.snapshot import SessionView

from ..listener import MIB, Speaker

DEVICES = [Device("host", 64 * MIB, "main memory", partial(HostLaneMemory, 64 * MIB))]
reports = st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 50)), max_size=40)


@pytest.fixture
def steady() -> FinishTime:
    """Reports of ten iterations a second, for five seconds."""
    finish = FinishTime()
    for second in range(6):
        finish.report(float(second), 10)
    return finish


def test_a_steady_pace_runs_down_with_the_clock(steady: FinishTime) -> None:
    assert steady.seconds(5.0, 100) == pytest.approx(10.0)
    assert steady.seconds(5.5, 100) == pytest.approx(9.5)
    assert steady.seconds(5.0, 0) == 0.0


def test_waits_for_the_device_count() -> None:
    """Each turn has four iterations in a second, and then others have the device for three
    seconds."""
    finish = FinishTime()
    for turn in range(10):
        finish.report(4.0 * turn + 1.0, 4)
    assert finish.seconds(37.0, 60) == pytest.approx(60.0)
    assert finish.seconds(40.0, 60) == pytest.approx(57.0), "a wait like those before"


def test_a_wait_that_is_longer_than_all_before_puts_the_end_off(steady: FinishTime) -> None:
    ends = [now + (steady.seconds(now, 100) or 0.0) for now in (6.0, 16.0, 36.0)]
    assert ends == pytest.approx([15.0, 45.0, 105.0])


def test_the_present_share_counts_and_not_that_of_long_ago() -> None:
    finish = FinishTime()
    for step in range(100):
        finish.report(0.5 * step, 10)
    for step in range(40):
        finish.report(50.0 + 1.0 * step, 1)
    assert finish.seconds(89.0, 30) == pytest.approx(30.0)


def test_it_is_unknown_until_there_is_a_pace() -> None:
    finish = FinishTime()
    assert finish.seconds(0.0, 10) is None
    finish.report(0.0, 5)
    finish.report(0.0, 0)
    assert finish.seconds(9.0, 10) is None, "one report"
    finish.report(0.5, 5)
    assert finish.seconds(0.5, 10) is None, "of too short a time"
    finish.report(1.5, 5)
    assert finish.seconds(1.5, None) is None, "nothing was declared"
    assert finish.seconds(1.5, 10) == pytest.approx(1.5)
    finish.forget()
    assert finish.seconds(1.5, 10) is None, "another cell"


@given(reports, st.floats(0, 1000), st.integers(0, 1 << 40))
def test_it_is_never_negative_and_never_comes_nearer_than_the_clock(
    said: list[tuple[float, int]], later: float, remaining: int
) -> None:
    finish, now = FinishTime(), 0.0
    for seconds, iterations in said:
        now += seconds
        finish.report(now, iterations)
    at_once, then = finish.seconds(now, remaining), finish.seconds(now + later, remaining)
    if at_once is None or then is None:
        assert at_once is then is None
        return
    assert then >= 0.0
    assert now + later + then >= now + at_once - 1e-6 * (now + at_once)


def test_a_client_that_reports_for_ever_costs_no_more_memory() -> None:
    finish = FinishTime()
    for step in range(10 * MOST_REPORTS):
        finish.report(1e-4 * step, 1)
    assert len(finish._reports) <= MOST_REPORTS


# --- in the Snapshot ------------------------------------------------------------------------------


@pytest.fixture
def ours(service: Service) -> Speaker:
    """A session with 100 iterations done in five seconds of its turn, and 40 to do."""
    ours = Speaker(service, "ada")
    demand = Demand(0, MIB, measured=True)
    ours.says(m.Open(id="ours", name="ours", device="host", demand=demand, busy=False))
    ours.says(m.Busy(True))
    ours.says(m.Request(1))
    for second in range(6):
        ours.says(m.Report(20, demand, 140 - 20 * second), float(second))
    return ours


def view(service: Service, now: float) -> SessionView:
    return service.snapshot(now).devices[0].sessions[0]


def test_a_session_that_waits_is_told(service: Service, ours: Speaker) -> None:
    ours.says(m.Finish(1), 5.0)
    other = Speaker(service, "ada")
    other.says(m.Open(id="other", name="other", device="host", demand=Demand(0, MIB)), 5.0)
    other.says(m.Request(1), 5.0)
    ours.says(m.Request(2), 5.0)
    service.tick(6.0)
    assert ours.last(m.Wait).remaining_seconds == pytest.approx(1.0)


def test_a_session_that_is_paused_or_whose_cell_is_over_has_none(
    service: Service, ours: Speaker
) -> None:
    ours.says(m.Change("ours", paused=True), 5.0).says(m.Finish(1), 5.0)
    assert (view(service, 5.0).state, view(service, 5.0).remaining_seconds) == ("paused", None)
    ours.says(m.Change("ours", paused=False), 5.1)
    assert view(service, 5.1).remaining_seconds is not None
    ours.says(m.Busy(False), 5.2)
    assert view(service, 5.2).remaining_seconds is None
    ours.says(m.Busy(True), 5.3)
    assert view(service, 5.3).remaining_seconds is None


def test_a_loop_goes_on_while_memory_is_kept_and_is_over_with_a_report_without_it(
    service: Service, ours: Speaker
) -> None:
    demand = Demand(MIB, MIB, measured=True)
    ours.says(m.Keep(demand), 5.0)
    assert view(service, 5.0).remaining_iterations == 40
    ours.says(m.Report(0, demand), 5.1)
    over = view(service, 5.1)
    assert (over.remaining_iterations, over.remaining_seconds) == (None, None)
