"""A demand is what was counted in iterations, and the lane is kept for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.demand import counters, estimator
from jupyter_gpushare.client.torch.memory import TorchMemory

from .conftest import alone, bytes_of

pytestmark = pytest.mark.usefixtures("counted")
counter = _core.AllocationCounter
MIB = 1 << 20
FLOAT = 4


class Perceptron:
    """One hidden layer, trained with plain SGD; its bytes are known by hand."""

    def __init__(self, width=100, rows=1000, inputs=10):
        self.parameters = FLOAT * (inputs * width + width + width + 1)
        self.batch = FLOAT * rows * inputs
        self.hidden = FLOAT * rows * width
        self.x = torch.ones(rows, inputs)
        self.model = nn.Sequential(nn.Linear(inputs, width), nn.Sigmoid(), nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=False)

    def iterate(self, memory):
        memory.begin()
        loss = self.model(self.x).sum()
        loss.backward()
        del loss
        self.optimizer.step()
        self.optimizer.zero_grad()
        memory.end()


def test_persistent_and_ephemeral_bytes_of_a_perceptron_are_exact():
    start = counter.live()
    perceptron = Perceptron()
    memory = TorchMemory()
    for _ in range(4):
        perceptron.iterate(memory)
    demand = memory.demand()
    assert demand.measured
    assert demand.persistent_bytes - start == perceptron.parameters + perceptron.batch
    # The most is alive in the sigmoid's backward: its result and the gradients of its result and
    # of its input; beside them the loss and its gradient, and the last layer's gradients.
    last_layer = FLOAT * (100 + 1)
    assert demand.ephemeral_bytes == 3 * perceptron.hidden + 2 * FLOAT + last_layer


def test_gradients_alive_at_the_boundary_are_persistent():
    start = counter.live()
    perceptron, memory = Perceptron(), TorchMemory()
    zero_grad, perceptron.optimizer.zero_grad = perceptron.optimizer.zero_grad, lambda: None
    for _ in range(3):
        zero_grad()
        perceptron.iterate(memory)
    expected = 2 * perceptron.parameters + perceptron.batch
    assert memory.demand().persistent_bytes - start == expected


def test_nothing_is_measured_before_the_second_iteration_and_all_of_it_is_persistent():
    perceptron, memory = Perceptron(), TorchMemory()
    assert memory.demand().measured is False
    perceptron.iterate(memory)
    unmeasured = memory.demand()
    assert (unmeasured.measured, unmeasured.ephemeral_bytes) == (False, 0)
    assert unmeasured.persistent_bytes == memory.peak()
    perceptron.iterate(memory)
    assert memory.demand().measured is True


def test_memory_between_iterations_is_persistent():
    start = counter.live()
    memory = TorchMemory()
    for _ in range(3):
        memory.begin()
        memory.end()
        bytes_of(7 * MIB)
    memory.begin()
    memory.end()
    assert memory.demand().persistent_bytes - start == 7 * MIB
    assert memory.demand().ephemeral_bytes == 0


def iterate(memory, *sizes):
    """Run iterations; each has a tensor of that number of bytes."""
    for size in sizes:
        memory.begin()
        bytes_of(size)
        memory.end()


def test_a_margin_takes_no_more_than_the_device_has():
    memory = TorchMemory()
    memory.want_squeeze("off")  # otherwise it first learns how far it can be squeezed
    iterate(memory, 1, 1000, 10)
    persistent = memory.demand().persistent_bytes
    for room, expected in ((1100, 1100), (1000, 1000), (500, 1000)):
        memory.use_lane(None, 0, persistent + room)
        assert memory.demand().ephemeral_bytes == expected


def test_a_margin_takes_no_more_than_the_other_sessions_leave_and_a_change_is_news():
    memory = TorchMemory()
    memory.want_squeeze("off")
    iterate(memory, 1, 1000, 10)
    persistent = memory.demand().persistent_bytes
    for room, expected, is_news in ((1300, 1200, False), (1100, 1100, True), (500, 1000, True)):
        memory.leave_room(persistent + room)
        assert memory.has_news is is_news
        assert memory.demand().ephemeral_bytes == expected


def test_a_demand_forgets_the_distant_past():
    memory = TorchMemory()
    iterate(memory, 1, MIB, *[1000] * estimator.WINDOW)
    assert memory.demand().ephemeral_bytes == 1000


WITH_LANES = """
import os, torch
from pathlib import Path
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.client.torch.memory import TorchMemory

MIB = 1 << 20
bytes_of = lambda size: torch.empty(size, dtype=torch.uint8)
memory, kept = TorchMemory(), []
lanes = [LaneMemory(number, os.memfd_create(f"lane{number}")) for number in (1, 2)]
for lane in lanes:
    os.ftruncate(lane.descriptor, 64 * MIB)
"""
IN_A_LANE = """
memory.use_lane(lanes[0], 64 * MIB, 256 * MIB)
for number in range(6):
    memory.begin()
    kept.clear()
    first = bytes_of(2 * MIB)
    kept.append(bytes_of(MIB))
    del first
    bytes_of(3 * MIB)
    memory.end()
    memory.evacuate()
    print(memory.demand().ephemeral_bytes // MIB)
"""


@pytest.mark.system
def test_lane_memory_of_survivors_before_they_were_known_is_not_demanded_for_long():
    assert list(map(int, alone(WITH_LANES + IN_A_LANE)))[1:] == [3, 7, 5, 3, 3]


IN_A_LANE_THAT_GROWS = """
memory.use_lane(lanes[0], 8 * MIB, 256 * MIB)
for number in range(4):
    memory.begin()
    assert memory.use_lane(lanes[0], 64 * MIB, 256 * MIB) == ""
    block = bytes_of(2 * MIB)
    print(memory.survivors() // MIB)
    del block
    memory.end()
"""


@pytest.mark.system
def test_a_lane_that_grows_in_the_middle_of_an_iteration_stays_in_use():
    assert list(map(int, alone(WITH_LANES + IN_A_LANE_THAT_GROWS))) == [0, 0, 2, 2]


A_LANE_THAT_IS_RELEASED = """
def trims(number, size):
    memory.trim_lane(number, size)
    maps = Path("/proc/self/maps").read_text()
    print("+".join(lane for lane in ("lane1", "lane2") if lane in maps) or "none")

def iterate(survives=False):
    memory.begin()
    block = bytes_of(2 * MIB) if survives else torch.empty(3 * MIB).sum()
    memory.end()
    return block

memory.use_lane(lanes[0], 8 * MIB, 256 * MIB)
for _ in range(3):
    iterate()
trims(1, 4 * MIB)
trims(2, 0)
memory.begin()
trims(1, 0)
memory.end()
survivor = iterate(survives=True)
trims(1, 0)
memory.evacuate()
trims(1, 0)
iterate()
trims(1, 0)
memory.use_lane(lanes[1], 8 * MIB, 256 * MIB)
iterate()
trims(1, 0)
"""


@pytest.mark.system
def test_a_lane_is_released_whole_unless_an_iteration_or_a_survivor_is_in_it():
    mapped = alone(WITH_LANES + A_LANE_THAT_IS_RELEASED)
    assert mapped == ["lane1"] * 4 + ["none"] * 2 + ["lane2"]


SHARING_THAT_ENDS = """
import sys, torch
from pathlib import Path
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing

def tell_lane():
    print("gpushare-lane" in Path("/proc/self/maps").read_text())

for _ in range(2):
    with gpushare.session() as session:
        while not session.memory.lane.is_open:
            with gpushare.turn():
                torch.empty(3 << 20)
        tell_lane()
        with gpushare.turn():
            survivor = torch.ones(1 << 18)
            if sys.argv[1] == "in an iteration":
                sharing.stop()
    tell_lane()
    assert survivor.sum() == 1 << 18
"""


@pytest.mark.system
@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("when", ["between iterations", "in an iteration"])
def test_when_sharing_ends_nothing_of_the_lane_stays_and_it_may_begin_again(when: str) -> None:
    assert alone(SHARING_THAT_ENDS, when) == ["True", "False"] * 2


A_LANE_THAT_CHANGES_AS_AN_ITERATION_BEGINS = """
import sys, threading

def changes(half, change, *arguments):
    def stop(frame, event, argument):
        if frame.f_code.co_name == half:
            half_done.set()
            begun.wait(1)  # the iteration begins meanwhile, or waits for the change

    sys.settrace(stop)
    change(*arguments)

memory.use_lane(lanes[0], 8 * MIB, 256 * MIB)
grows = "_open_window", memory.use_lane, lanes[0], 64 * MIB, 256 * MIB
for change in (grows, ("survivors", memory.trim_lane, 1, 0)):
    for _ in range(3):
        memory.begin()
        memory.end()
    half_done, begun = threading.Event(), threading.Event()
    other = threading.Thread(target=changes, args=change)
    other.start()
    half_done.wait()
    memory.begin()
    begun.set()
    other.join()
    print(memory.lane.inside, memory.lane.is_open)
    memory.end()
"""


def test_a_lane_changes_before_an_iteration_begins_or_not_at_all():
    said = alone(WITH_LANES + A_LANE_THAT_CHANGES_AS_AN_ITERATION_BEGINS)
    assert said == ["True", "True", "False", "False"]


LEARNING = """
import psutil, torch
from jupyter_gpushare.client.torch.memory import TorchMemory

resident = lambda: psutil.Process().memory_info().rss
memory = TorchMemory()
memory.begin()
blocks = [torch.ones(1 << 16) for _ in range(400)]
kept = blocks[::40]  # so that libc cannot give back the end of its heap
del blocks
memory.end()
before = resident()
memory.evacuate()
print(before - resident())
"""


@pytest.mark.system
def test_a_turn_that_was_spent_outside_of_the_lane_leaves_nothing_in_the_heap():
    (given_back,) = alone(LEARNING)
    assert int(given_back) > 80 * MIB  # of 100


def test_nothing_is_paged_out_to_main_memory():
    kept = torch.ones(MIB)
    size, reason = TorchMemory().page_out("/dev/shm")
    assert (size, reason[:55]) == (0, "/dev/shm lies in main memory, and paging out to there w")
    assert kept.sum() == MIB


def test_events_out_of_order_change_nothing():
    memory = TorchMemory()
    memory.end()
    for _ in range(3):
        memory.begin()
        kept = bytes_of(1000)
        memory.begin()
        del kept
        memory.end()
        memory.end()
    assert memory.demand().ephemeral_bytes == 1000


def test_where_counting_fails_the_whole_process_is_persistent_and_it_is_said(monkeypatch):
    monkeypatch.setattr(counters, "self_test", lambda: "tensors cannot be counted here")
    memory = TorchMemory()
    for _ in range(3):
        memory.begin()
        memory.end()
    demand = memory.demand()
    assert demand.measured
    assert demand.ephemeral_bytes == 0
    assert demand.persistent_bytes > 50 * MIB
    assert "tensors cannot be counted here" in memory.how
