"""A broker serves notebooks with several whole devices at once, beside all others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare import _core
from jupyter_gpushare.broker.accounting.accounts import AccountBook
from jupyter_gpushare.broker.grants.recovery import RecoveryJournal
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import ToBroker
from jupyter_gpushare.wire.snapshot import SessionView

from ..listener import Listener

GB = 1 << 30
GPUS = [Device(f"cuda:{number}", 16 * GB, "a GPU", uuid=f"GPU-{number}") for number in range(3)]
ALL = [device.name for device in GPUS]
LEASE = load({}).lease_seconds
AGING = load({}).aging_seconds


class Host:
    """A broker of three GPUs, which may end and be started again, and its notebooks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.notebooks: dict[str, Notebook] = {}
        self.accounts = AccountBook()
        self._journal = os.memfd_create("journal")
        self.start()

    def start(self, grants_from: float = 0.0) -> None:
        self.service = Service(
            load({}),
            GPUS,
            started=0.0,
            grants_from=grants_from,
            accounts=self.accounts,
            journal=RecoveryJournal(self._journal),
        )

    def close(self) -> None:
        self.accounts.close()
        os.close(self._journal)

    def open(self, name: str, devices: int = 1, among: list[str] | None = None) -> Notebook:
        notebook = Notebook(self, name, devices, among or [])
        self.notebooks[name] = notebook
        return notebook

    def lose(self, name: str) -> None:
        self.service.lost(self.notebooks.pop(name), self.now)

    def restart(self) -> None:
        """Kill the broker. All sessions come to the next one before it grants anything."""
        self.start(self.now + 1.0)
        for notebook in self.notebooks.values():
            notebook.register()
        self.look()
        self.pass_time(1.0)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.service.pass_time(self.now)
        self.service.tick(self.now)

    def views(self, name: str) -> dict[str, SessionView]:
        """Return the views of a session by device."""
        return {
            device.name: view
            for device in self.service.snapshot(self.now).devices
            for view in device.sessions
            if view.name == name
        }

    def holders(self) -> set[str]:
        return {name for name, notebook in self.notebooks.items() if notebook.has}

    def look(self) -> None:
        """Check that each gang has all of its devices or none, and that no device has two
        holders."""
        assert self.service._host.is_valid() == ""
        used = [device for name in self.holders() for device in self.notebooks[name].on]
        assert len(used) == len({*used})
        for name, notebook in self.notebooks.items():
            views = self.views(name)
            assert [*views] == notebook.on
            for view in views.values():
                assert (view.state in ("running", "overdue")) == notebook.has
                assert view.gang == (notebook.on if len(notebook.on) > 1 else [])


class Notebook(Listener):
    """A session that obeys the broker; `on` has its devices."""

    def __init__(self, host: Host, name: str, devices: int, among: list[str]) -> None:
        self.host, self.name, self.devices, self.on = host, name, devices, among
        self.turn, self.wants, self.has = 0, False, False
        self.demand = Demand(GB, GB, measured=True)
        self.register()

    def register(self) -> None:
        """Open the session on a new connection."""
        super().__init__("ada")
        self.is_owner, self.asked = True, False
        self.says(m.Hello(m.PROTOCOL))
        place: dict[str, Any] = {"among": self.on, "devices": self.devices}
        turn = {"turn": self.turn, "holding": self.has, "waiting": self.wants and not self.has}
        self.says(m.Open(self.name, self.name, demand=self.demand, **place, **turn))
        for opened in self.heard_of(m.Opened):
            self.on = opened.gang or [opened.device]

    def says(self, message: ToBroker) -> None:
        self.host.service.handle(self, message, self.host.now)

    def send(self, *messages: m.Message) -> None:
        super().send(*messages)
        for message in messages:
            if isinstance(message, m.Grant) and message.turn == self.turn and self.wants:
                assert self.devices == 1 or not (self.has or message.bytes)
                self.has = True
            elif isinstance(message, m.Yield) and message.turn == self.turn:
                assert self.has
                assert not self.asked
                self.asked = True

    def request(self) -> Notebook:
        if not self.wants:
            self.turn, self.wants = self.turn + 1, True
            self.says(m.Request(self.turn))
        return self

    def finish(self) -> None:
        if self.wants:
            self.wants = self.has = self.asked = False
            self.says(m.Finish(self.turn))

    def report(self, persistent: int) -> None:
        """Report a demand of this number of GB."""
        self.demand = Demand(persistent * GB, GB, measured=True)
        self.says(m.Report(1, self.demand))


Three = tuple[Notebook, Notebook, Notebook]


@pytest.fixture
def host() -> Iterator[Host]:
    with contextlib.closing(Host()) as host:
        yield host


@pytest.fixture
def three(host: Host) -> Three:
    """Three notebooks: a single one has cuda:1, a gang waits for it, and a third one waits for the
    device that is kept for the gang."""
    single = host.open("single", among=["cuda:1"]).request()
    gang = host.open("gang", 2, ALL[:2]).request()
    third = host.open("third", among=["cuda:0"]).request()
    assert host.holders() == {"single"}
    return single, gang, third


# --- all or none ------------------------------------------------------------------------------


def test_a_gang_has_the_emptiest_devices_and_is_told_which(host: Host) -> None:
    host.open("single", among=["cuda:0"])
    (opened,) = host.open("gang", 2).heard_of(m.Opened)
    assert opened == m.Opened(
        "gang", "cuda:1", 16 * GB, 0, "GPU-1", ["cuda:1", "cuda:2"], ["GPU-1", "GPU-2"]
    )


def test_a_gang_waits_until_all_are_free_and_is_told_the_holders(host: Host) -> None:
    single = host.open("single", among=["cuda:1"])
    gang = host.open("gang", 2, ["cuda:0", "cuda:1"])
    single.request()
    gang.request()
    assert host.holders() == {"single"}
    host.pass_time(1.0)
    (wait,) = gang.heard_of(m.Wait)  # one, and not one for each device
    why = "waits until all of its 2 devices are free: cuda:1 is held by single"
    assert (wait.reason, wait.waiting_seconds, wait.position) == (why, 1.0, 1)
    views = host.views("gang")
    assert {view.reason for view in views.values()} == {why}
    assert {view.state for view in views.values()} == {"waiting"}
    assert single.asked
    single.finish()
    assert host.holders() == {"gang"}
    reasons = {view.reason for view in host.views("gang").values()}
    assert reasons == {"runs, and has 2 whole devices: cuda:0, cuda:1"}
    single.request()
    (view,) = host.views("single").values()
    assert view.reason == "waits for gang, which has the whole device"


def test_a_gang_shares_no_lane_and_no_session_runs_beside_it(host: Host) -> None:
    gang = host.open("gang", 3)
    gang.says(m.SetPolicy(running_lanes=0))
    gang.says(m.SetPolicy("pack"))
    others = [host.open(f"single{number}", among=[ALL[number % 3]]) for number in range(6)]
    gang.request()
    for other in others:
        other.request()
    assert host.holders() == {"gang"}
    assert gang.heard_of(m.Grant) == [m.Grant(1, 0)]


# --- events that a single session survives --------------------------------------------------------


def test_a_gang_that_asks_a_broker_which_recovers_waits_and_is_told_so(host: Host) -> None:
    host.start(grants_from=5.0)
    gang = host.open("gang", 2).request()
    host.pass_time(1.0)
    (wait,) = gang.heard_of(m.Wait)
    kept = "is kept for the notebooks that had it before the broker was restarted"
    assert wait.reason == (
        f"waits until all of its 2 devices are free: cuda:0 {kept}; cuda:1 {kept}"
    )
    host.look()
    assert host.holders() == set()
    host.pass_time(4.0)
    assert host.holders() == {"gang"}


# --- reasons why a gang has no devices ------------------------------------------------------------


def test_a_paused_gang_keeps_no_device_from_others(host: Host, three: Three) -> None:
    single, gang, third = three
    gang.says(m.Change(paused=True))
    assert host.holders() == {"single", "third"}
    for notebook in (single, third):
        notebook.finish()
    assert host.holders() == set()
    gang.says(m.Change(paused=False))
    assert host.holders() == {"gang"}


def test_a_gang_that_is_paused_in_its_turn_is_asked_to_end_it_once(host: Host) -> None:
    gang = host.open("gang", 3).request()
    gang.says(m.Change(paused=True))
    assert gang.asked
    gang.finish()
    gang.request()
    assert {view.state for view in host.views("gang").values()} <= {"paused", "idle"}
    assert host.holders() == set()


def test_a_user_can_preempt_a_gang(host: Host) -> None:
    gang = host.open("gang", 2).request()
    gang.says(m.Preempt("gang"))
    assert gang.asked
    gang.finish()
    gang.says(m.Preempt("gang"))
    assert gang.last(m.Error).message == "gang has no turn to end"


def test_a_holder_that_hangs_on_one_device_keeps_a_gang_from_it_and_no_other_device_idle(
    host: Host, three: Three
) -> None:
    hanging, _, third = three
    host.pass_time(1.0)
    assert hanging.asked
    host.pass_time(LEASE)
    assert host.holders() == {"single", "third"}
    (reason,) = {view.reason for view in host.views("gang").values()}
    assert reason == (
        "waits until all of its 2 devices are free: cuda:0 is held by third;"
        " cuda:1 is held by single, which is overdue"
    )
    hanging.finish()
    third.finish()
    assert host.holders() == {"gang"}


def test_a_gang_without_room_on_one_device_keeps_no_other_device_idle(host: Host) -> None:
    large = host.open("large", among=["cuda:1"])
    large.says(m.Report(1, Demand(15 * GB, 0, measured=True)))
    gang = host.open("gang", 2, ALL[:2])
    third = host.open("third", among=["cuda:0"])
    gang.request()
    third.request()
    assert host.holders() == {"third"}
    (reason,) = {view.reason for view in host.views("gang").values()}
    assert reason.endswith("cuda:0 is held by third; cuda:1 has too little room")
    third.finish()
    host.lose("large")
    assert host.holders() == {"gang"}


def test_the_idle_are_paged_out_for_a_gang(host: Host) -> None:
    idle = host.open("idle", among=["cuda:1"])
    idle.says(m.Report(1, Demand(15 * GB, 0, measured=True)))
    idle.says(m.Busy(False))
    host.open("gang", 2, ALL[:2]).request()
    assert host.holders() == set()
    assert idle.heard_of(m.PageOut) == [m.PageOut()]
    idle.says(m.PagedOut(15 * GB))
    assert host.holders() == {"gang"}
    host.look()


def test_backfill_past_a_gang_that_waits_for_memory_is_bounded(host: Host) -> None:
    host.open("large", among=["cuda:1"]).says(m.Report(1, Demand(9 * GB, 0, measured=True)))
    gang = host.open("gang", 2, ALL[:2])
    gang.says(m.Report(1, Demand(9 * GB, 0, measured=True)))
    gang.request()
    host.pass_time(AGING + 1.0)
    newcomer = host.open("newcomer", among=["cuda:1"]).request()
    assert host.holders() == set()  # although there is room for it
    host.lose("large")
    newcomer.finish()
    assert host.holders() == {"gang"}
    host.look()


def test_a_gangs_seconds_count_for_each_device_and_its_waits_once(host: Host) -> None:
    single = host.open("single", among=["cuda:0"])
    gang = host.open("gang", 2, ALL[:2])
    single.request()
    gang.request()
    for _ in range(4):
        host.pass_time(1.0)
    single.finish()
    for _ in range(3):
        host.pass_time(1.0)
    assert [view.waited_seconds for view in host.views("gang").values()] == [4.0, 4.0]
    gang.says(m.Account(0.0, 4e9, "notebook"))
    while not gang.heard_of(m.Accounts):
        host.service.tick(host.now)
    (answer,) = gang.heard_of(m.Accounts)
    used = {row.name: (row.device_seconds, row.waited_seconds) for row in answer.rows}
    # cuda:1 was kept for it while it waited for cuda:0
    assert used["ada: gang"] == (10.0, 4.0)


NAMES = ("gang0", "gang1", "gang2", "single0", "single1", "single2", "single3")
ACTIONS = (
    *("request", "request", "request", "finish", "finish", "obey", "time", "lose", "reconnect"),
    *("restart", "pause", "goes on", "policy", "grow", "shrink"),
)
steps = st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES))
devices = st.sets(st.sampled_from(ALL), min_size=2).map(sorted)
POLICIES = [name for name, _ in _core.policies()]


@pytest.mark.system
@settings(max_examples=120, deadline=None)
@given(st.lists(devices, min_size=3, max_size=3), st.lists(steps, max_size=50))
def test_a_gang_has_all_or_none_and_every_session_is_served_whatever_happens(
    wanted: list[list[str]], path: list[tuple[str, str]]
) -> None:
    with contextlib.closing(Host()) as host:
        live_through(host, wanted, path)


def live_through(host: Host, wanted: list[list[str]], path: list[tuple[str, str]]) -> None:
    on = {f"gang{number}": among for number, among in enumerate(wanted)}
    on |= {f"single{number}": [ALL[number % 3]] for number in range(4)}
    for name in NAMES:
        host.open(name, len(on[name]), on[name])
    for number, (what, name) in enumerate(path):
        notebook = host.notebooks[name]
        if what == "lose":
            host.lose(name)
            host.open(name, len(on[name]), on[name])
        elif what == "restart":
            host.restart()
        elif what == "reconnect":
            notebook.register()
        elif what == "time":
            host.pass_time(0.3 * number)
        elif what == "obey":
            for each in host.notebooks.values():
                if each.asked:
                    each.finish()
        elif what in ("pause", "goes on"):
            notebook.says(m.Change(paused=what == "pause"))
        elif what in ("grow", "shrink"):
            notebook.report(12 if what == "grow" else 1)
        elif what == "policy":
            notebook.says(m.SetPolicy(POLICIES[number % len(POLICIES)]))
        else:
            getattr(notebook, what)()
        host.look()
    for notebook in host.notebooks.values():
        notebook.says(m.Change(paused=False))
        notebook.report(1)
    served: set[str] = set()
    for _ in range(300):
        for name, notebook in host.notebooks.items():
            if notebook.has:
                served.add(name)
                # an iteration has ended; under some policies no preemption request comes
                notebook.finish()
            notebook.request()
        if served == {*NAMES}:
            return
        host.pass_time(0.3)
        host.look()
    raise AssertionError(f"{ {*NAMES} - served } never had a turn")
