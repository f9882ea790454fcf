"""The service alone: devices that this machine does not have, and time that does not pass."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

import pytest

from jupyter_gpushare.broker.grants.recovery import Held, RecoveryJournal
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection
from jupyter_gpushare.broker.transport.server import Endpoint
from jupyter_gpushare.devices import Device
from jupyter_gpushare.devices.nvml import Usage
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.framing import HEADER_BYTES, ToBroker, decode_from_broker
from jupyter_gpushare.wire.snapshot import Snapshot

from .listener import Speaker

GB = 1 << 30
HOST = Device("host", 64 * GB, "main memory")
DEVICES = [Device("cuda:0", 16 * GB, "a GPU"), HOST]


def open_of(name: str, persistent: int = GB, ephemeral: int = GB, **more: Any) -> m.Open:
    return m.Open(id=name, name=name, demand=m.Demand(persistent, ephemeral, measured=True), **more)


class Notebook(Speaker):
    """A peer with a session of this name."""

    def __init__(
        self,
        service: Service,
        name: str,
        device: str = "auto",
        user: str = "root",
        among: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self.is_owner = user == "root"
        super().__init__(service, user)
        self.frames: list[bytes] = []
        self.says(open_of(name, device=device, among=list(among), **more), 0.0)

    def send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.heard.append(decode_from_broker(frame[HEADER_BYTES:]))


def device_of(notebook: Notebook) -> str:
    *_, opened = notebook.heard_of(m.Opened)
    assert isinstance(opened, m.Opened)
    return opened.device


def test_auto_is_a_gpu_where_there_is_one(service: Service) -> None:
    assert Notebook(service, "a").heard_of(m.Opened) == [m.Opened("a", "cuda:0", 16 * GB)]
    assert device_of(Notebook(Service(load({}), [HOST], started=0.0), "a")) == "host"


# --- several GPUs ---------------------------------------------------------------------------------

SEVERAL = [
    Device("cuda:0", 16 * GB, "a GPU", uuid="GPU-a"),
    Device("cuda:1", 16 * GB, "a GPU", uuid="GPU-b"),
    Device("cuda:2", 24 * GB, "a larger GPU", uuid="GPU-c"),
    HOST,
]


@pytest.fixture
def several() -> Service:
    return Service(load({}), SEVERAL, started=0.0)


def test_a_uuid_is_a_device_and_is_told(several: Service) -> None:
    notebook = Notebook(several, "a", "GPU-b")
    assert notebook.heard_of(m.Opened) == [m.Opened("a", "cuda:1", 16 * GB, uuid="GPU-b")]


def test_a_session_with_a_choice_goes_where_there_is_most_room_for_each(several: Service) -> None:
    went = [device_of(Notebook(several, f"n{number}")) for number in range(4)]
    assert went == ["cuda:2", "cuda:0", "cuda:1", "cuda:2"]


def test_a_session_without_a_choice_goes_where_it_may(several: Service) -> None:
    assert device_of(Notebook(several, "a", among=["GPU-b"])) == "cuda:1"
    assert device_of(Notebook(several, "b", among=["GPU-b", "GPU-a"])) == "cuda:0"


def test_of_equal_devices_the_first_visible_one_is_taken(several: Service) -> None:
    assert device_of(Notebook(several, "a", among=["GPU-b", "GPU-a"])) == "cuda:1"


def test_a_demand_goes_where_it_fits_now(several: Service) -> None:
    """cuda:0 has 10 GB free and one notebook, cuda:2 has 12 GB free and two."""
    for name, device, size in (("a", "cuda:0", 6), ("b", "cuda:2", 6), ("c", "cuda:2", 6)):
        Notebook(several, name, device).says(open_of(name, size * GB, 0, device=device), 0.0)
    among = ["GPU-a", "GPU-c"]
    notebook = Notebook(several, "small", among=among)
    assert device_of(notebook) == "cuda:0"
    notebook.says(m.Close(), 0.0)
    notebook.says(open_of("large", 10 * GB, 1 * GB, among=among), 0.0)
    assert device_of(notebook) == "cuda:2"


def test_a_session_that_opens_again_stays_where_it_is(several: Service) -> None:
    notebook = Notebook(several, "a", "cuda:1")
    notebook.says(open_of("a", among=["GPU-a", "GPU-b"]), 1.0)
    assert device_of(notebook) == "cuda:1"


def test_an_unknown_gpu_is_refused_with_the_known_ones(
    several: Service,
) -> None:
    (error,) = Notebook(several, "a", among=["GPU-x"]).heard_of(m.Error)
    assert isinstance(error, m.Error)
    assert error.message == (
        "there is no device 'GPU-x' here; there is cuda:0, cuda:1, cuda:2, host"
    )


# --- unmanaged memory -----------------------------------------------------------------------------


class Gpu:
    """A device of 16 GB whose driver says `usage`, None for no answer; it counts how often it was
    asked."""

    def __init__(self, usage: Usage | None) -> None:
        self.usage = usage
        self.asked = 0
        self.device = Device("cuda:0", 16 * GB, "a GPU", uuid="GPU-a", usage=self.ask)
        self.service = Service(load({}), [self.device, HOST], started=0.0)

    def ask(self) -> Usage | None:
        self.asked += 1
        return self.usage

    def unmanaged(self, now: float) -> int:
        self.service.pass_time(now)
        self.service.tick(now)
        return self.service.snapshot(now).devices[0].foreign_bytes


OURS, OTHERS = 1, 77  # processes: notebooks of these tests all have 1


@pytest.mark.parametrize(
    ("usage", "unmanaged"),
    [
        (Usage(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}), 5),
        (Usage(9 * GB, {OURS: 4 * GB}), 0),
        (Usage(9 * GB, {OURS: None, OTHERS: 5 * GB}), 5),
        (Usage(9 * GB, {OURS: 4 * GB, OTHERS: None}), 7),  # less 2 GB that the notebook needs
        (Usage(9 * GB, {OTHERS: 9 * GB}), 7),  # a container: one of the others is ours
        (Usage(9 * GB, {}), 7),
        (Usage(1 * GB, {}), 0),
    ],
)
def test_unmanaged_memory_is_counted(usage: Usage, unmanaged: int) -> None:
    gpu = Gpu(usage)
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(5.0) == unmanaged * GB


def test_unmanaged_memory_stays_unknown_while_the_demand_of_a_session_is_unknown() -> None:
    gpu = Gpu(Usage(9 * GB, {}))
    notebook = Notebook(gpu.service, "a")
    assert gpu.unmanaged(1.0) == 7 * GB
    notebook.says(m.Report(1, m.Demand(8 * GB, 0, measured=False)), 1.5)
    gpu.usage = Usage(16 * GB, {})
    assert gpu.unmanaged(3.0) == 7 * GB


def test_sessions_of_another_device_are_unmanaged_here() -> None:
    gpu = Gpu(Usage(4 * GB, {OURS: GB, OTHERS: 3 * GB}))
    Notebook(gpu.service, "a")
    Notebook(gpu.service, "b", "host").pid = OTHERS
    assert gpu.unmanaged(1.0) == 3 * GB


def test_sessions_of_another_container_are_not_unmanaged() -> None:
    """The broker cannot tell which of the processes they are."""
    gpu = Gpu(Usage(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}))
    Notebook(gpu.service, "a")
    Notebook(gpu.service, "b", "cuda:0").pid = 0
    assert gpu.unmanaged(5.0) == 6 * GB  # less 2 GB that they keep and 1 GB of their lane


def test_after_a_crash_no_process_is_unmanaged_before_old_sessions_had_time_to_come() -> None:
    gpu = Gpu(Usage(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}))
    gpu.service = Service(load({}), [gpu.device, HOST], started=0.0, grants_from=10.0)
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(9.9) == 0
    assert gpu.unmanaged(10.0) == 5 * GB


def test_a_newcomer_finds_no_room_in_unmanaged_memory_and_all_of_its_own() -> None:
    gpu = Gpu(Usage(15 * GB, {OURS: 14 * GB, OTHERS: GB}))
    notebook = Notebook(gpu.service, "a", "host")
    notebook.says(m.Close(), 0.0)
    notebook.says(open_of("a", 14 * GB, GB, device="cuda:0"), 0.0)
    notebook.says(m.Request(1), 0.0)
    assert notebook.heard_of(m.Grant)
    another = Notebook(gpu.service, "b", "cuda:0")
    another.says(m.Request(1), 0.0)
    assert not another.heard_of(m.Grant)


def test_the_driver_is_asked_once_a_second_where_there_are_sessions() -> None:
    gpu = Gpu(Usage(0, {}))
    gpu.service.tick(1.0)
    assert gpu.asked == 0
    Notebook(gpu.service, "a", "cuda:0")  # at 0.0
    assert gpu.asked == 1
    for tick in range(30):
        gpu.service.tick(2.0 + tick / 10)
    assert gpu.asked == 4


def test_a_driver_that_does_not_answer_changes_nothing() -> None:
    gpu = Gpu(Usage(5 * GB, {OURS: GB, OTHERS: 4 * GB}))
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(1.0) == 4 * GB
    gpu.usage = None
    assert gpu.unmanaged(5.0) == 4 * GB


def test_a_session_that_is_granted_when_unmanaged_memory_ends_has_a_turn_like_any_other() -> None:
    gpu = Gpu(Usage(16 * GB, {OTHERS: 16 * GB}))
    first, second = Notebook(gpu.service, "a", "cuda:0"), Notebook(gpu.service, "b", "cuda:0")

    async def run() -> None:
        ours, theirs = socket.socketpair()
        endpoint = Endpoint(load({}), gpu.service)
        with theirs:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(endpoint), ours
            )
            for notebook in (first, second):
                notebook.says(m.Request(1), time.monotonic())
                assert not notebook.heard_of(m.Grant)
            gpu.usage = Usage(0, {})
            while not first.heard_of(m.Yield):  # its time is over although no message has come
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    (turn,) = gpu.service.snapshot(time.monotonic()).devices[0].turns
    assert turn.session == "a"


def test_a_session_with_a_choice_avoids_a_gpu_with_unmanaged_memory() -> None:
    busy, free = Gpu(Usage(12 * GB, {OTHERS: 12 * GB})), Gpu(Usage(0, {}))
    devices = [busy.device, free.device._replace(name="cuda:1", uuid="GPU-b")]
    service = Service(load({}), devices, started=0.0)
    assert device_of(Notebook(service, "a")) == "cuda:1"


# --- turns of devices -----------------------------------------------------------------------------


def test_devices_give_turns_independently(service: Service) -> None:
    first, second = Notebook(service, "a", "cuda:0"), Notebook(service, "b", "cuda:0")
    third = Notebook(service, "c", "host")
    for notebook in (first, second, third):
        notebook.says(m.Request(1), 1.0)
    assert first.heard_of(m.Grant)
    assert not second.heard_of(m.Grant)
    assert third.heard_of(m.Grant)


def test_an_unknown_device_is_refused_with_those_that_exist(service: Service) -> None:
    (error,) = Notebook(service, "a", "cuda:7").heard_of(m.Error)
    assert isinstance(error, m.Error)
    assert error.code == "unknown_device"
    assert "cuda:0, host" in error.message


def test_lanes_are_set_for_one_device_alone(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.SetPolicy(running_lanes=3, device="host"), 1.0)
    notebook.says(m.Look(), 1.0)
    (snapshot,) = notebook.heard_of(Snapshot)
    assert isinstance(snapshot, Snapshot)
    assert {view.name: view.running_lanes for view in snapshot.devices} == {"cuda:0": 0, "host": 3}


def test_a_client_that_asks_again_and_again_is_sent_the_snapshot_made_already(
    service: Service,
) -> None:
    notebook = Notebook(service, "a")
    for _ in range(3):
        notebook.says(m.Look(), 1.0)
    notebook.says(m.Change(weight=2.0), 1.0)
    notebook.says(m.Look(), 1.0)
    first, second, third, changed = notebook.frames
    assert first is second is third
    assert changed != first


def test_a_preemption_request_comes_when_the_quantum_is_over_and_not_before() -> None:
    service = Service(load({}, boost_seconds=0.0), DEVICES, started=0.0)
    first, second = Notebook(service, "a"), Notebook(service, "b")
    first.says(m.Request(1), 1.0)
    second.says(m.Request(1), 1.1)
    due = service.next_event(1.1)
    assert due == pytest.approx(1.25)
    service.pass_time(1.2)
    assert not first.heard_of(m.Yield)
    service.pass_time(1.25)
    assert first.heard_of(m.Yield) == [m.Yield(1)]
    first.says(m.Finish(1), 1.3)
    assert second.heard_of(m.Grant)


def test_after_a_crash_no_session_is_granted_before_old_holders_had_time_to_come() -> None:
    journal = RecoveryJournal()
    journal.missing = {Held("holder", 7, "")}
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0, journal=journal)
    waiter = Notebook(service, "waiter")
    waiter.says(m.Request(1), 9.0)
    assert service.next_event(9.0) == 10.0
    holder = Notebook(service, "holder", turn=7, holding=True)
    service.pass_time(10.0)
    assert not waiter.heard_of(m.Grant)
    holder.says(m.Finish(7), 10.5)
    assert waiter.heard_of(m.Grant)


def test_after_a_crash_the_snapshot_says_that_the_broker_recovers_until_it_grants() -> None:
    assert not Service(load({}), DEVICES, started=0.0).snapshot(0.0).broker.recovering
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0)
    before = service.snapshot(9.9)
    service.pass_time(10.0)
    after = service.snapshot(10.0)
    assert (before.broker.recovering, after.broker.recovering) == (True, False)
    assert after.sequence > before.sequence  # so that subscribers are told


def test_a_request_withdrawn_before_any_grant_is_forgotten() -> None:
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0)
    notebook = Notebook(service, "a")
    notebook.says(m.Request(1), 9.0)
    notebook.says(m.Finish(1), 9.1)
    service.pass_time(10.0)
    assert not notebook.heard_of(m.Grant)


@pytest.mark.parametrize("number", [-1, 2**64, 2**70])
def test_a_turn_with_an_impossible_number_costs_no_other_session_a_turn(number: int) -> None:
    service = Service(load({}), DEVICES, started=0.0, grants_from=10.0)
    odd, waiter = Notebook(service, "odd"), Notebook(service, "waiter")
    odd.says(m.Request(number), 9.0)
    waiter.says(m.Request(1), 9.1)
    assert refusal(odd) == "invalid"
    service.pass_time(10.0)
    assert waiter.heard_of(m.Grant)
    waiter.says(m.Finish(number), 10.1)
    assert refusal(waiter) == "invalid"
    (turn,) = service.snapshot(10.2).devices[0].turns
    assert turn.ended is None


# --- requests of people ---------------------------------------------------------------------------


def refusal(notebook: Notebook) -> str:
    (error,) = notebook.heard_of(m.Error)
    assert isinstance(error, m.Error)
    return error.code


def test_a_holder_is_asked_to_yield_before_its_time_is_over(service: Service) -> None:
    holder, other = Notebook(service, "a"), Notebook(service, "b")
    holder.says(m.Request(1), 1.0)
    other.says(m.Preempt("a"), 1.1)
    assert holder.heard_of(m.Yield) == [m.Yield(1)]
    assert other.heard_of(m.Done)


def test_only_a_session_with_a_turn_can_be_asked_to_yield(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.Preempt("a"), 1.0)
    assert refusal(notebook) == "invalid"


def test_an_idle_notebook_is_asked_to_page_out_although_no_other_needs_the_memory(
    service: Service,
) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.Busy(False), 1.0)
    notebook.says(m.Evict("a"), 2.0)
    assert notebook.heard_of(m.PageOut) == [m.PageOut()]


def test_a_notebook_in_which_a_cell_runs_is_not_asked_to_page_out(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.Evict("a"), 2.0)
    assert refusal(notebook) == "invalid"
    assert not notebook.heard_of(m.PageOut)


def test_a_waiting_session_is_told_that_its_wait_is_cancelled_and_withdraws_by_itself(
    service: Service,
) -> None:
    holder, waiting = Notebook(service, "a"), Notebook(service, "b")
    holder.says(m.Request(1), 1.0)
    waiting.says(m.Request(1), 1.1)
    holder.says(m.Cancel("b"), 1.2)
    assert waiting.heard_of(m.Withdraw) == [
        m.Withdraw(1, "root cancelled this cell's wait for the device")
    ]
    assert {view.id: view.state for view in service.snapshot(1.2).devices[0].sessions} == {
        "a": "running",
        "b": "waiting",  # it may have been handed the turn already: its own message counts
    }
    waiting.says(m.Finish(1), 1.3)
    assert service.snapshot(1.3).devices[0].sessions[1].state == "idle"


def test_a_wait_that_is_over_cannot_be_cancelled(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.Request(1), 1.0)
    notebook.says(m.Cancel("a"), 1.1)
    assert refusal(notebook) == "invalid"


@pytest.mark.parametrize(
    "message",
    [m.Preempt("a"), m.Evict("a"), m.Cancel("a"), m.Change("a", paused=True), m.SetPolicy("fifo")],
    ids=lambda message: type(message).__name__,
)
def test_a_stranger_is_refused_and_changes_nothing(service: Service, message: ToBroker) -> None:
    owner, stranger = Notebook(service, "a"), Notebook(service, "b", user="eve")
    owner.says(m.Request(1), 1.0)
    heard = list(owner.heard)
    stranger.says(message, 1.1)
    assert refusal(stranger) == "not_permitted"
    assert owner.heard == heard
    assert service.snapshot(1.1).policy == "fair"


def test_the_owner_may_ask_without_being_an_administrator(service: Service) -> None:
    first, second = (Notebook(service, name, user="eve") for name in "ab")
    first.says(m.Request(1), 1.0)
    second.says(m.Request(1), 1.0)
    second.says(m.Preempt("a"), 1.1)
    second.says(m.Cancel("b"), 1.1)
    assert first.heard_of(m.Yield)
    assert second.heard_of(m.Withdraw)


def test_a_client_learns_as_which_user_it_is_authenticated(service: Service) -> None:
    for user, is_administrator in (("root", True), ("eve", False)):
        (welcome,) = Notebook(service, user, user=user).heard_of(m.Welcome)
        assert isinstance(welcome, m.Welcome)
        assert (welcome.user, welcome.is_administrator) == (user, is_administrator)


# --- history --------------------------------------------------------------------------------------


def test_a_viewer_that_comes_late_knows_the_last_minute(service: Service) -> None:
    first, second = Notebook(service, "a"), Notebook(service, "b")
    first.says(m.Request(1), 1.0)
    second.says(m.Request(1), 1.0)
    first.says(m.Finish(1), 5.0)
    (device, _) = service.snapshot(8.0).devices
    assert [(turn.session, turn.began, turn.ended) for turn in device.turns] == [
        ("a", 7.0, 3.0),
        ("b", 3.0, None),
    ]
    assert {turn.lane for turn in device.turns} == {lane.id for lane in device.lanes}
    assert [(user.name, user.used_seconds[-1]) for user in device.users] == [("root", 7.0)]


def test_the_turn_of_a_lost_connection_is_over(service: Service) -> None:
    notebook = Notebook(service, "a")
    notebook.says(m.Request(1), 1.0)
    service.lost(notebook, 3.0)
    (turn,) = service.snapshot(4.0).devices[0].turns
    assert (turn.began, turn.ended) == (3.0, 1.0)


# --- the queue ------------------------------------------------------------------------------------


def test_every_look_tells_the_same_queue_in_its_order_as_long_as_nothing_happens(
    service: Service,
) -> None:
    names = ["holder", "c", "a", "d", "b"]
    notebooks = [Notebook(service, name, "host") for name in names]
    for number, notebook in enumerate(notebooks):
        notebook.says(m.Request(1), 1.0 + 1.7 * number)
    for look in range(6):
        now = 10.0 + look * 1.3
        service.tick(now)
        (device,) = [view for view in service.snapshot(now).devices if view.name == "host"]
        assert [view.name for view in device.sessions] == names
        assert [view.position for view in device.sessions] == [None, 1, 2, 3, 4]
        told = [notebook.heard_of(m.Wait)[-1] for notebook in notebooks[1:]]
        assert [wait.position for wait in told] == [1, 2, 3, 4]  # the cell's own line
        assert [wait.expected_seconds for wait in told] == [None] * 4  # nothing is known of a turn
