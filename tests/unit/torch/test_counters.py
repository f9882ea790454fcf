"""Bytes are counted exactly, in whatever way tensors are allocated and freed."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.demand import counters
from jupyter_gpushare.client.torch.demand.counters import self_test
from jupyter_gpushare.client.torch.memory import TorchMemory

from .conftest import alone, bytes_of

pytestmark = pytest.mark.usefixtures("counted")
counter = _core.AllocationCounter
MIB = 1 << 20


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
    counter.take_peak()
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
    counter.take_peak()
    assert counter.peak() == start


def test_an_adopted_storage_counts_once_and_until_it_is_freed():
    start = counter.live()
    tensor = bytes_of(1000)
    counter.adopt(tensor.data_ptr(), 1000)
    assert counter.live() - start == 1000
    del tensor
    assert counter.live() == start


def test_nothing_is_installed_without_torch_and_the_reason_is_said():
    words = alone("""
from jupyter_gpushare._core import AllocationCounter as counter
print(counter.install())
""")
    assert " ".join(words) == "libc10.so is not loaded"


def test_a_process_is_searched_again_after_its_first_iteration_only_if_it_had_tensors_before():
    """A search looks at all objects. The second one is for gradients that a step has read."""
    words = alone("""
import gc
import io

import torch

from jupyter_gpushare.client.torch.memory import TorchMemory

search, searches = gc.get_objects, []
gc.get_objects = lambda *given: searches.append(1) or search(*given)


def iterate_first():
    memory = TorchMemory()
    memory.begin()
    memory.end()
    return len(searches)


print(iterate_first())
kept = torch.ones(3)
print(iterate_first())
torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), file := io.BytesIO())
kept = torch.jit.load(io.BytesIO(file.getvalue()))  # its tensors are in C++
gc.collect()
print(iterate_first())
""")
    assert words == ["1", "3", "5"]


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
    counter.take_peak()
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

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(churn, (3, 5, 7, 11)))
    assert counter.live() - start == sum(tensor.nbytes for tensor in pool)
    pool.clear()
    assert counter.live() == start


def test_the_self_test_passes_here():
    assert self_test() == ""
    assert TorchMemory().how == counters.CountedStorages.how


@pytest.mark.system
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
from jupyter_gpushare.client.torch.memory import TorchMemory
print(TorchMemory().live())
print(4 * (100 * 50 + 50) * 4 + 2 * 4)  # weights, gradients, two moments; and two step counts
""")
    assert live == expected


@pytest.mark.system
def test_gradients_that_python_never_read_are_counted_after_the_first_step():
    gradients, counted = alone("""
import torch
model = torch.nn.Linear(1000, 100)
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(10, 1000)).sum().backward()
from jupyter_gpushare.client.torch.memory import TorchMemory
memory = TorchMemory()
before = memory.live()
memory.begin()
optimizer.step()
memory.end()
print(4 * (1000 * 100 + 100))
print(memory.live() - before)
""")
    assert counted == gradients


def test_a_meter_keeps_no_tensor_alive():
    tensor = bytes_of(1000)
    alive = weakref.ref(tensor)
    TorchMemory()
    del tensor
    assert alive() is None
