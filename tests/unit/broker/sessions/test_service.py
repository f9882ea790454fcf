"""The service alone, with devices that this machine does not have, and time that stands still."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.connection import Connection
from jupyter_gpushare.broker.transport.server import Endpoint
from jupyter_gpushare.devices import Device
from jupyter_gpushare.devices.nvml import GpuUse
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import HEADER_BYTES, ToBroker, decode_from_broker
from jupyter_gpushare.wire.snapshot import Snapshot

from ..listener import Speaker

GB = 1 << 30
HOST = Device("host", 64 * GB, "main memory")
DEVICES = [Device("cuda:0", 16 * GB, "a GPU"), HOST]


class Notebook(Speaker):
    """A peer with a session of this name."""

    def __init__(
        self, service: Service, name: str, device: str = "auto", user: str = "root", **more: Any
    ) -> None:
        self.is_owner = user == "root"
        super().__init__(service, user)
        self.frames: list[bytes] = []
        demand = Demand(GB, GB, measured=True)
        self.says(m.Open(name, name, device, demand=demand, **more))

    def send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.heard.append(decode_from_broker(frame[HEADER_BYTES:]))


def device_of(notebook: Notebook) -> str:
    return notebook.last(m.Opened).device


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


def test_of_visible_devices_the_first_of_those_with_most_room_is_taken(several: Service) -> None:
    visible = (["GPU-b", "GPU-a"], ["GPU-b", "GPU-a"], ["GPU-b"])
    went = [device_of(Notebook(several, f"n{n}", among=each)) for n, each in enumerate(visible)]
    assert went == ["cuda:1", "cuda:0", "cuda:1"]


# --- unmanaged memory -----------------------------------------------------------------------------


class Gpu:
    """A device of 16 GB. Its driver answers `usage`, or nothing if that is None, and counts the
    questions."""

    def __init__(self, usage: GpuUse | None) -> None:
        self.usage = usage
        self.asked = 0
        self.device = Device("cuda:0", 16 * GB, "a GPU", uuid="GPU-a", usage=self.ask)
        self.service = Service(load({}), [self.device, HOST], started=0.0)

    def ask(self) -> GpuUse | None:
        self.asked += 1
        return self.usage

    def unmanaged(self, now: float) -> int:
        self.service.pass_time(now)
        self.service.tick(now)
        return self.service.snapshot(now).devices[0].unmanaged_bytes


OURS, OTHERS = 1, 77  # processes: notebooks of these tests all have 1


@pytest.mark.parametrize(
    ("usage", "unmanaged"),
    [
        (GpuUse(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}), 5),
        (GpuUse(9 * GB, {OURS: 4 * GB}), 0),
        (GpuUse(9 * GB, {OURS: None, OTHERS: 5 * GB}), 5),
        (GpuUse(9 * GB, {OURS: 4 * GB, OTHERS: None}), 7),  # less 2 GB that the notebook needs
        (GpuUse(9 * GB, {OTHERS: 9 * GB}), 7),  # a container: one of the others is ours
        (GpuUse(9 * GB, {}), 7),
        (GpuUse(1 * GB, {}), 0),
    ],
)
def test_unmanaged_memory_is_counted(usage: GpuUse, unmanaged: int) -> None:
    gpu = Gpu(usage)
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(5.0) == unmanaged * GB


def test_unmanaged_memory_stays_unknown_while_the_demand_of_a_session_is_unknown() -> None:
    gpu = Gpu(GpuUse(9 * GB, {}))
    notebook = Notebook(gpu.service, "a")
    assert gpu.unmanaged(1.0) == 7 * GB
    notebook.says(m.Report(1, Demand(8 * GB, 0, measured=False)), 1.5)
    gpu.usage = GpuUse(16 * GB, {})
    assert gpu.unmanaged(3.0) == 7 * GB


def test_what_a_session_has_before_its_first_report_is_not_unmanaged_where_none_is_told() -> None:
    gpu = Gpu(GpuUse(9 * GB, {}))
    notebook = Speaker(gpu.service, "ada").says(m.Open("a", "a", "cuda:0"))
    notebook.says(m.Request(1))
    assert gpu.unmanaged(2.0) == 0
    notebook.says(m.Report(1, Demand(9 * GB, 0)), 2.5).says(m.Finish(1), 2.5)
    notebook.says(m.Request(2), 2.5)
    assert gpu.unmanaged(4.0) == 0
    assert [grant.turn for grant in notebook.heard_of(m.Grant)] == [1, 2]


def test_sessions_of_another_device_are_unmanaged_here() -> None:
    gpu = Gpu(GpuUse(4 * GB, {OURS: GB, OTHERS: 3 * GB}))
    Notebook(gpu.service, "a")
    Notebook(gpu.service, "b", "host").pid = OTHERS
    assert gpu.unmanaged(1.0) == 3 * GB


def test_sessions_of_another_container_are_not_unmanaged() -> None:
    """The broker cannot tell which processes of the driver's list are sessions."""
    gpu = Gpu(GpuUse(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}))
    Notebook(gpu.service, "a")
    Notebook(gpu.service, "b", "cuda:0").pid = 0
    assert gpu.unmanaged(5.0) == 6 * GB  # less 2 GB that they keep and 1 GB of their lane


def test_after_a_crash_no_process_is_unmanaged_before_old_sessions_had_time_to_come() -> None:
    gpu = Gpu(GpuUse(9 * GB, {OURS: 4 * GB, OTHERS: 5 * GB}))
    gpu.service = Service(load({}), [gpu.device, HOST], started=0.0, grants_from=10.0)
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(9.9) == 0
    assert gpu.unmanaged(10.0) == 5 * GB


def test_the_driver_is_asked_once_a_second_where_there_are_sessions() -> None:
    gpu = Gpu(GpuUse(0, {}))
    gpu.service.tick(1.0)
    assert gpu.asked == 0
    Notebook(gpu.service, "a", "cuda:0")  # at 0.0
    assert gpu.asked == 1
    for tick in range(30):
        gpu.service.tick(2.0 + tick / 10)
    assert gpu.asked == 4


def test_a_driver_that_does_not_answer_changes_nothing() -> None:
    gpu = Gpu(GpuUse(5 * GB, {OURS: GB, OTHERS: 4 * GB}))
    Notebook(gpu.service, "a")
    assert gpu.unmanaged(1.0) == 4 * GB
    gpu.usage = None
    assert gpu.unmanaged(5.0) == 4 * GB


@pytest.mark.system
def test_a_session_that_is_granted_when_unmanaged_memory_ends_has_a_turn_like_any_other() -> None:
    gpu = Gpu(GpuUse(16 * GB, {OTHERS: 16 * GB}))
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
            gpu.usage = GpuUse(0, {})
            while not first.heard_of(m.Yield):  # its time has ended although no message has come
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    (turn,) = gpu.service.snapshot(time.monotonic()).devices[0].turns
    assert turn.session == "a"


def test_a_session_with_a_choice_avoids_a_gpu_with_unmanaged_memory() -> None:
    busy, free = Gpu(GpuUse(12 * GB, {OTHERS: 12 * GB})), Gpu(GpuUse(0, {}))
    devices = [busy.device, free.device._replace(name="cuda:1", uuid="GPU-b")]
    service = Service(load({}), devices, started=0.0)
    assert device_of(Notebook(service, "a")) == "cuda:1"


# --- turns of devices -----------------------------------------------------------------------------


def test_lanes_are_set_for_one_device_alone(service: Service) -> None:
    notebook = Notebook(service, "a").says(m.SetPolicy(running_lanes=3, device="host"), 1.0)
    notebook.says(m.Look(), 1.0)
    (snapshot,) = notebook.heard_of(Snapshot)
    assert {view.name: view.running_lanes for view in snapshot.devices} == {"cuda:0": 0, "host": 3}


def test_a_client_that_asks_again_and_again_is_sent_the_snapshot_made_already(
    service: Service,
) -> None:
    notebook = Notebook(service, "a")
    for _ in range(3):
        notebook.says(m.Look(), 1.0)
    notebook.says(m.Change(weight=2.0), 1.0).says(m.Look(), 1.0)
    first, second, third, changed = notebook.frames
    assert first is second is third
    assert changed != first


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
    return error.code


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


def test_a_notebook_that_loads_a_batch_between_two_turns_is_counted_among_those_that_take_turns(
    service: Service,
) -> None:
    waiting, loads, ends = (Notebook(service, name, busy=True) for name in ("a", "b", "c"))
    for at, notebook in enumerate((loads, ends, waiting), 1):
        notebook.says(m.Request(1), at)
        if notebook is not waiting:
            notebook.says(m.Finish(1), at + 0.5)
    holder = Notebook(service, "d", busy=True)
    ends.says(m.Busy(False), 4.0)
    waiting.says(m.Finish(1), 4.1)
    holder.says(m.Request(1), 4.2)
    waiting.says(m.Request(2), 4.3)
    said = []
    for now in (5.0, 5.6, 40.0):
        service.tick(now)
        said.append(waiting.last(m.Wait).others)
    assert said == [2, 2, 1]


def test_an_iteration_that_lets_others_wait_and_a_wait_that_is_a_bound_are_told_as_such(
    service: Service,
) -> None:
    """The cell of the second notebook may end at a boundary within its turn, so the third one may
    wait less."""
    all_three = long, second, third = [Notebook(service, name, busy=True) for name in "abc"]
    for notebook, began, each in ((long, 0.0, 4.0), (second, 8.0, 0.1), (third, 8.2, 0.1)):
        notebook.says(m.Request(1), began)
        for number in (1, 2):
            notebook.says(m.Report(1, Demand(GB, GB, measured=True)), began + number * each)
        notebook.says(m.Finish(1), began + 2 * each)
    for notebook in all_three:
        notebook.says(m.Request(2), 9.0)
    service.tick(10.0)
    views = service.snapshot(10.0).devices[0].sessions
    assert [view.iteration_seconds for view in views] == [1.0, None, None]
    assert [view.expected_wait_is_bound for view in views] == [False, False, True]
    assert [each.last(m.Wait).expected_is_bound for each in (second, third)] == [False, True]


@pytest.mark.parametrize("message", [m.Cancel("a"), m.Evict("a")])
def test_a_notebook_in_its_turn_has_no_wait_to_cancel_and_is_not_asked_to_page_out(
    service: Service, message: ToBroker
) -> None:
    notebook = Notebook(service, "a").says(m.Request(1), 1.0)
    notebook.says(message, 1.1)
    assert refusal(notebook) == "invalid"
    assert not notebook.heard_of(m.PageOut)


@pytest.mark.parametrize(
    "message",
    [
        m.Open(id="a", name="taken over", device="host"),
        m.Open(id="mine", name="mine", device="host", priority=5),
        m.Change("a", paused=True),
        m.Change("a", weight=5.0),
        m.Preempt("a"),
        m.Evict("a"),
        m.Cancel("a"),
        m.SetPolicy("fifo"),
        m.SetPolicy(running_lanes=2),
        m.Shutdown(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_stranger_is_refused_and_changes_nothing(service: Service, message: ToBroker) -> None:
    owner, stranger = Notebook(service, "a"), Speaker(service, "eve")
    owner.says(m.Request(1), 1.0)
    heard, before = list(owner.heard), service.snapshot(1.1)
    stranger.says(message, 1.1)
    assert refusal(stranger) == "not_permitted"
    assert (owner.heard, service.snapshot(1.1)) == (heard, before)


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
    notebook = Notebook(service, "a").says(m.Request(1), 1.0)
    service.lost(notebook, 3.0)
    (turn,) = service.snapshot(4.0).devices[0].turns
    assert (turn.began, turn.ended) == (3.0, 1.0)
