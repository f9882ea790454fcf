"""Bytes are counted exactly, whoever allocates and frees, and a demand is what was counted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch import counters, estimator
from jupyter_gpushare.client.torch.counters import self_test
from jupyter_gpushare.client.torch.memory import Memory

counter = _core.AllocationCounter
MIB = 1 << 20
FLOAT = 4


@pytest.fixture(autouse=True)
def counted():
    """The counter is installed, and nobody else's garbage dies in the middle of a test."""
    assert counter.install() == ""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8)


def alone(code):
    """Run code in a process of its own, where nothing was installed before; its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- the counter ----------------------------------------------------------------------------------


def test_live_bytes_are_exactly_those_of_living_tensors():
    start = counter.live()
    tensors = []
    for size in (1, 63, 64, 65, 4095, 4096, 4097, MIB + 1):
        tensors.append(bytes_of(size))
        assert counter.live() - start == sum(tensor.nbytes for tensor in tensors)
    while tensors:
        tensors.pop(0)
        assert counter.live() - start == sum(tensor.nbytes for tensor in tensors)


def test_views_cost_nothing_and_resizing_counts_the_new_size():
    start = counter.live()
    tensor = bytes_of(1000)
    view = tensor[10:20].view(2, 5)
    assert counter.live() - start == 1000
    tensor.untyped_storage().resize_(5000)
    assert counter.live() - start == 5000
    del tensor
    assert counter.live() - start == 5000
    del view
    assert counter.live() == start


def test_the_peak_is_the_most_that_was_alive_at_one_time():
    counter.reset_peak()
    start = counter.live()
    first = bytes_of(3 * MIB)
    second = bytes_of(2 * MIB)
    del first
    third = bytes_of(1 * MIB)
    assert counter.peak() - start == 5 * MIB
    assert counter.take_peak() == (start + 3 * MIB, start + 5 * MIB)
    assert counter.peak() - start == 3 * MIB
    del second, third
    assert counter.peak() - start == 3 * MIB
    counter.reset_peak()
    assert counter.peak() == start


def test_an_adopted_storage_counts_once_and_until_it_is_freed():
    start = counter.live()
    tensor = bytes_of(1000)
    counter.adopt(tensor.data_ptr(), 1000)
    assert counter.live() - start == 1000
    del tensor
    assert counter.live() == start


def test_storages_from_before_are_adopted_and_their_ends_are_seen():
    adopted, freed, unknown = alone("""
import torch
from jupyter_gpushare._core import AllocationCounter as counter
kept, forgotten = torch.empty(5000, dtype=torch.uint8), torch.empty(700, dtype=torch.uint8)
assert "libc10" not in counter.install()
counter.adopt(kept.data_ptr(), 5000)
print(counter.live())
del kept
print(counter.live())
del forgotten
print(counter.live())
""")
    assert (int(adopted), int(freed), int(unknown)) == (5000, 0, 0)


def test_nothing_is_installed_without_torch_and_the_reason_is_said():
    words = alone("""
from jupyter_gpushare._core import AllocationCounter as counter
print(counter.install())
""")
    assert " ".join(words) == "libc10.so is not loaded"


def test_memory_of_numpy_is_not_ours():
    numpy = pytest.importorskip("numpy")
    start = counter.live()
    tensor = torch.from_numpy(numpy.zeros(1000))
    counters.adopt_storages()
    assert counter.live() == start
    del tensor
    assert counter.live() == start


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 100_000)), max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_series_of_allocations_agrees_with_a_plain_sum(series):
    counter.reset_peak()
    start = counter.live()
    peak = live = 0
    tensors = {}
    for place, size in series:
        tensors[place] = None
        live = sum(tensor.nbytes for tensor in tensors.values() if tensor is not None)
        tensors[place] = bytes_of(size)
        live += size
        peak = max(peak, live)
        assert counter.live() - start == live
    assert counter.peak() - start == peak


def test_many_blocks_grow_the_table_and_leave_it_empty():
    start = counter.live()
    tensors = [bytes_of(8) for _ in range(100_000)]
    assert counter.live() - start == 800_000
    del tensors[::2]
    assert counter.live() - start == 400_000
    tensors.clear()
    assert counter.live() == start


def test_threads_that_allocate_and_free_each_others_tensors_lose_nothing():
    start = counter.live()
    pool = [bytes_of(64) for _ in range(64)]

    def churn(seed):
        for i in range(3000):
            pool[(i * seed) % len(pool)] = bytes_of(1 + (i * seed) % 5000)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.live() - start == sum(tensor.nbytes for tensor in pool)
    pool.clear()
    assert counter.live() == start


def test_a_child_forked_in_the_middle_counts_on_and_does_not_hang():
    start = counter.live()
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            bytes_of(100)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    kept = bytes_of(1000)
    children = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            before = counter.live()
            del kept
            fresh = bytes_of(500)
            right = counter.live() == before - 500
            del fresh
            os._exit(0 if right and counter.live() == before - 1000 else 1)
        children.append(child)
    stop.set()
    for thread in threads:
        thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 20
    del kept
    assert counter.live() == start


# --- the memory of iterations --------------------------------------------------------------------


def test_the_self_test_passes_here():
    assert self_test() == ""
    assert Memory().how == counters.CountedStorages.how


def test_a_meter_finds_all_tensors_from_before_it():
    live, expected = alone("""
import torch
model = torch.nn.Linear(100, 50)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(10, 100)).sum().backward()
optimizer.step()
view = model.weight[3:].detach()
class Trap:
    @property
    def __class__(self):
        raise RuntimeError("asked an object what it is")
trap = Trap()
from jupyter_gpushare.client.torch.memory import Memory
print(Memory().live())
print(4 * (100 * 50 + 50) * 4 + 2 * 4)  # weights, gradients, two moments; and two step counts
""")
    assert live == expected


def test_gradients_that_python_never_read_are_counted_after_the_first_step():
    gradients, counted = alone("""
import torch
model = torch.nn.Linear(1000, 100)
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(10, 1000)).sum().backward()
from jupyter_gpushare.client.torch.memory import Memory
memory = Memory()
before = memory.live()
memory.begin()
optimizer.step()
memory.end()
print(4 * (1000 * 100 + 100))
print(memory.live() - before)
""")
    assert counted == gradients


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
    memory = Memory()
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
    perceptron, memory = Perceptron(), Memory()
    zero_grad, perceptron.optimizer.zero_grad = perceptron.optimizer.zero_grad, lambda: None
    for _ in range(3):
        zero_grad()
        perceptron.iterate(memory)
    expected = 2 * perceptron.parameters + perceptron.batch
    assert memory.demand().persistent_bytes - start == expected


def test_nothing_is_measured_before_the_second_iteration_and_all_of_it_is_persistent():
    perceptron, memory = Perceptron(), Memory()
    assert memory.demand().measured is False
    perceptron.iterate(memory)
    unmeasured = memory.demand()
    assert (unmeasured.measured, unmeasured.ephemeral_bytes) == (False, 0)
    assert unmeasured.persistent_bytes == memory.peak()
    perceptron.iterate(memory)
    assert memory.demand().measured is True


def test_memory_between_iterations_is_persistent():
    start = counter.live()
    memory = Memory()
    for _ in range(3):
        memory.begin()
        memory.end()
        bytes_of(7 * MIB)
    memory.begin()
    memory.end()
    assert memory.demand().persistent_bytes - start == 7 * MIB
    assert memory.demand().ephemeral_bytes == 0


def test_varying_shapes_get_a_margin_of_their_spread_up_to_a_fifth():
    def demand_of(sizes):
        memory = Memory()
        for size in sizes:
            memory.begin()
            bytes_of(size)
            memory.end()
        return memory.demand().ephemeral_bytes

    assert demand_of([1, 1000, 1000]) == 1000
    assert demand_of([1, 1000, 950]) == 1050
    assert demand_of([1, 1000, 10]) == 1200


def test_a_margin_takes_no_more_than_the_device_has():
    memory = Memory()
    for size in (1, 1000, 10):
        memory.begin()
        bytes_of(size)
        memory.end()
    persistent = memory.demand().persistent_bytes
    for room, expected in ((1100, 1100), (1000, 1000), (500, 1000)):
        memory.use_lane(None, 0, persistent + room)
        assert memory.demand().ephemeral_bytes == expected


def test_a_demand_forgets_what_is_long_ago():
    memory = Memory()
    for size in [1, MIB] + [1000] * estimator.WINDOW:
        memory.begin()
        bytes_of(size)
        memory.end()
    assert memory.demand().ephemeral_bytes == 1000


IN_A_LANE = """
import os, torch
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.client.torch.memory import Memory

MIB = 1 << 20
bytes_of = lambda size: torch.empty(size, dtype=torch.uint8)
memory, kept = Memory(), []
lane = LaneMemory(1, os.memfd_create("lane"))
os.ftruncate(lane.descriptor, 64 * MIB)
memory.use_lane(lane, 64 * MIB, 256 * MIB)
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


def test_what_survivors_took_of_the_lane_before_they_were_known_is_not_demanded_for_long():
    assert list(map(int, alone(IN_A_LANE)))[1:] == [3, 7, 5, 3, 3]


IN_A_LANE_THAT_GROWS = """
import os, torch
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.client.torch.memory import Memory

MIB = 1 << 20
memory = Memory()
lane = LaneMemory(1, os.memfd_create("lane"))
os.ftruncate(lane.descriptor, 64 * MIB)
memory.use_lane(lane, 8 * MIB, 256 * MIB)
for number in range(4):
    memory.begin()
    assert memory.use_lane(lane, 64 * MIB, 256 * MIB) == ""
    block = torch.empty(2 * MIB, dtype=torch.uint8)
    print(memory.survivors() // MIB)
    del block
    memory.end()
"""


def test_a_lane_that_grows_in_the_middle_of_an_iteration_is_used_on():
    assert list(map(int, alone(IN_A_LANE_THAT_GROWS))) == [0, 0, 2, 2]


LEARNING = """
import psutil, torch
from jupyter_gpushare.client.torch.memory import Memory

resident = lambda: psutil.Process().memory_info().rss
memory = Memory()
memory.begin()
blocks = [torch.ones(1 << 16) for _ in range(400)]
kept = blocks[::40]  # so that libc cannot give back the end of its heap
del blocks
memory.end()
before = resident()
memory.evacuate()
print(before - resident())
"""


def test_a_turn_that_was_spent_outside_of_the_lane_leaves_nothing_in_the_heap():
    (given_back,) = alone(LEARNING)
    assert int(given_back) > 80 * MIB  # of 100


def test_nothing_is_paged_out_to_main_memory():
    kept = torch.ones(MIB)
    size, reason = Memory().page_out("/dev/shm")
    assert (size, reason[:55]) == (0, "/dev/shm lies in main memory, and paging out to there w")
    assert kept.sum() == MIB


def test_events_out_of_order_change_nothing():
    memory = Memory()
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
    memory = Memory()
    for _ in range(3):
        memory.begin()
        memory.end()
    demand = memory.demand()
    assert demand.measured
    assert demand.ephemeral_bytes == 0
    assert demand.persistent_bytes > 50 * MIB
    assert "tensors cannot be counted here" in memory.how


def test_a_meter_keeps_no_tensor_alive():
    tensor = bytes_of(1000)
    alive = weakref.ref(tensor)
    Memory()
    del tensor
    assert alive() is None
