"""Idle culling and hanging holders, in a service with time set by a test."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.broker.admin.idle import IDLE, Escalation
from jupyter_gpushare.broker.admin.rulebook import Duration, Idle
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire import snapshot as s
from jupyter_gpushare.wire.demand import Demand

from ..listener import Speaker

GB = 1 << 30
RULES = """
[idle]
give_back_caches_after = "1 min"
page_out_after = "10 min"
release_after = "30 min"
cull_after = "2 h"

[overdue]
interrupt_after = "1 min"
end_after = "5 min"
"""
LEASE = load({}).lease_seconds


class Notebook(Speaker):
    """A peer that keeps its messages, and has a session of its name."""

    def __init__(self, service: Service, name: str, user: str = "ada", **more: Any) -> None:
        super().__init__(service, user)
        self.uid, self.pid = os.getuid(), 7
        self.name = name
        self.opens(0.0, **more)

    def opens(self, now: float, **more: Any) -> None:
        demand = Demand(GB, GB, measured=True)
        self.says(m.Open(id=self.name, name=f"{self.name}.ipynb", demand=demand, **more), now)

    def hears(self, *kinds: type[m.Message]) -> list[m.Message]:
        """Return the messages of these kinds, and forget all messages."""
        heard, self.heard = self.heard, []
        return [message for message in heard if isinstance(message, kinds)]


DEVICES = [Device("host", 64 * GB, "main memory")]


def pass_until(service: Service, end: float, step: float = 5.0) -> None:
    """Advance to this time, tick by tick. Each escalation step of the rules falls on a tick."""
    now = getattr(service, "_test_now", 0.0)
    while now < end:
        now += step
        service.pass_time(now)
        service.tick(now)
    service._test_now = now  # type: ignore[attr-defined]


def device(service: Service, now: float) -> s.DeviceView:
    return service.snapshot(now).devices[0]


def view(service: Service, now: float) -> s.SessionView:
    (only,) = device(service, now).sessions
    return only


def test_an_idle_notebook_goes_through_the_escalation_steps(service: Service) -> None:
    notebook = Notebook(service, "a", busy=False)
    pass_until(service, 60)
    assert notebook.hears(m.GiveBack, m.PageOut, m.Rest) == []
    pass_until(service, 65)
    assert notebook.hears(m.GiveBack, m.PageOut, m.Rest) == [m.GiveBack()]
    assert (view(service, 65.0).idle_step, view(service, 65.0).idle_seconds) == ("caches", 60.0)
    pass_until(service, 605)
    assert notebook.hears(m.GiveBack, m.PageOut, m.Rest) == [m.PageOut()]
    notebook.says(m.PagedOut(GB), 606.0)
    assert (view(service, 606.0).state, view(service, 606.0).idle_step) == ("paged_out", "page_out")
    pass_until(service, 1805)
    assert notebook.hears(m.GiveBack, m.PageOut, m.Rest) == [m.Rest()]


@pytest.mark.parametrize(("busy", "has_turn"), [(True, True), (True, False), (False, True)])
def test_a_cell_that_runs_or_a_turn_is_never_idle(
    service: Service, busy: bool, has_turn: bool
) -> None:
    notebook = Notebook(service, "a", busy=busy)
    if has_turn:
        notebook.says(m.Request(1), 1.0)
    pass_until(service, 10_000)
    assert notebook.hears(m.GiveBack, m.PageOut, m.Rest, m.Notice) == []
    assert view(service, 10_000.0).idle_seconds is None


def test_a_cell_starts_the_escalation_anew(service: Service) -> None:
    notebook = Notebook(service, "a", busy=False)
    pass_until(service, 65)
    notebook.says(m.Busy(True), 66.0)
    pass_until(service, 70)
    notebook.says(m.Busy(False), 71.0)
    notebook.hears()
    pass_until(service, 130)
    assert notebook.hears(m.GiveBack) == []
    pass_until(service, 140)
    assert notebook.hears(m.GiveBack) == [m.GiveBack()]


# --- released notebooks ---------------------------------------------------------------------------


@pytest.fixture
def resting(service: Service) -> Notebook:
    notebook = Notebook(service, "a", busy=False)
    pass_until(service, 1805)
    notebook.says(m.Rests(GB), 1806.0)
    notebook.hears()
    return notebook


def test_a_released_session_has_no_lane_and_is_shown(service: Service, resting: Notebook) -> None:
    shown = device(service, 1806.0)
    assert (shown.sessions, shown.persistent_bytes) == ([], 0)
    assert shown.resting == [
        s.RestingView("a", "a.ipynb", "ada", 7, GB, idle_seconds=1801.0, idle_step="release")
    ]


def test_a_released_session_counts_to_the_limits_of_sessions() -> None:
    service = Service(load({}, max_sessions_per_user=1), DEVICES, started=0.0)
    first = Notebook(service, "a", busy=False)
    second = Notebook(service, "b")
    first.says(m.Rests(0), 1.0)
    second.opens(2.0)
    assert len(second.hears(m.Error)) == 2
    first.hears()
    first.opens(3.0)  # it opens its own session again
    assert len(first.hears(m.Opened)) == 1
    first.says(m.Rests(0), 4.0).says(m.Close(), 5.0)
    second.opens(6.0)
    assert (second.hears(m.Error), second.session) == ([], "b")


def test_a_released_session_counts_to_the_quota_of_sessions(ruled: Any) -> None:
    service = ruled("[quotas]\nsessions = 1\npersistent = '1 GiB'")
    first = Notebook(service, "a", busy=False).says(m.Rests(GB), 1.0)
    second = Notebook(service, "b")
    assert second.last(m.Error).code == "quota"
    service.lost(first, 2.0)
    second.opens(3.0)
    assert second.hears(m.Opened)


def test_no_other_user_takes_the_name_of_a_released_session(
    service: Service, resting: Notebook
) -> None:
    thief = Notebook(service, "a", user="eve")
    assert thief.last(m.Error).code == "not_permitted"
    resting.opens(2000.0)
    assert resting.hears(m.Error) == []


def test_a_released_process_that_ends_is_forgotten(service: Service, resting: Notebook) -> None:
    service.lost(resting, 2000.0)
    assert device(service, 2000.0).resting == []
    pass_until(service, 8000)
    assert service.snapshot(8000.0).interventions == []


# --- rules ----------------------------------------------------------------------------------------


def taken(escalation: Escalation, now: float, rules: Idle) -> list[str]:
    return [step.name for _, step in escalation.follow(now, ["a"], rules)]


def test_a_step_without_a_time_or_with_0_is_left_out() -> None:
    escalation = Escalation(IDLE)
    rules = Idle(page_out_after=Duration(10), release_after=Duration(0))
    taken(escalation, 0.0, rules)
    assert taken(escalation, 1e9, rules) == ["page_out"]


def test_rules_that_change_hold_at_once() -> None:
    escalation = Escalation(IDLE)
    assert taken(escalation, 0.0, Idle()) == taken(escalation, 700.0, Idle()) == []
    rules = Idle(give_back_caches_after=Duration(60), page_out_after=Duration(600))
    assert taken(escalation, 701.0, rules) == ["caches", "page_out"]


# --- directives to the Jupyter server -------------------------------------------------------------


def actions(snapshot: s.Snapshot) -> list[tuple[str, str]]:
    return [(one.session, one.action) for one in snapshot.interventions]


def test_an_idle_kernel_is_culled_last_whether_it_is_released_or_not(
    service: Service, resting: Notebook
) -> None:
    pass_until(service, 7200)
    assert actions(service.snapshot(7200.0)) == []
    before = service.snapshot(7200.0).sequence
    pass_until(service, 7205)
    assert actions(service.snapshot(7205.0)) == [("a", "cull")]
    assert service.snapshot(7205.0).sequence > before  # or it would not be shown
    resting.opens(7206.0)
    pass_until(service, 7210)
    assert actions(service.snapshot(7210.0)) == []


def test_a_holder_that_hangs_is_interrupted_and_later_ended(service: Service) -> None:
    holder, waiter = Notebook(service, "a"), Notebook(service, "b", user="bob")
    holder.says(m.Request(1), 0.0)
    waiter.says(m.Request(1), 0.0)
    overdue = LEASE + 5.0  # and the quantum before it
    pass_until(service, overdue)
    assert service.snapshot(overdue).interventions == []
    pass_until(service, overdue + 60)
    (one,) = service.snapshot(overdue + 60).interventions
    assert (one.session, one.action) == ("a", "interrupt")
    told, notice = holder.heard_of(m.Notice)
    assert told.sentence.startswith("This notebook was asked 30 s ago to let others run, and has")
    for sentence in (notice.sentence, one.sentence):
        assert sentence.startswith("This notebook was asked 9")
        assert sentence.endswith(
            " s ago to let others run, and has not. So its cell is interrupted."
        )
    pass_until(service, overdue + 300)
    assert actions(service.snapshot(overdue + 300)) == [("a", "end")]
    holder.says(m.Finish(1), overdue + 301)
    pass_until(service, overdue + 305)
    assert service.snapshot(overdue + 305).interventions == []
    assert waiter.hears(m.Grant)


def test_by_default_nothing_is_culled_and_holders_that_hang_are_only_shown() -> None:
    service = Service(load({}), DEVICES, started=0.0)
    Notebook(service, "idle", busy=False)
    for name in ("a", "b"):
        Notebook(service, name).says(m.Request(1), 0.0)
    pass_until(service, 100_000, step=100.0)
    states = {view.state for view in device(service, 100_000.0).sessions}
    assert states == {"overdue", "waiting", "idle"}
    assert service.snapshot(100_000.0).interventions == []


def test_an_intervention_names_no_notebook() -> None:
    """All users see an intervention, but not all may see names."""
    names = {field.encode_name for field in msgspec.structs.fields(s.Intervention)}
    assert names == {"session", "action", "sentence"}
