"""Tensors that go out to a file and come back have every bit as before, whichever thread touches
them when."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jupyter_gpushare._core import AllocationCounter, Pager

from ...pages import is_out
from ...programs.iterations import Bits, bits_of
from ...programs.networks import mean_square, train

MIB = 1 << 20
DIRECTORY = os.environ.get("TMPDIR", "/tmp")


@pytest.fixture(autouse=True)
def valid() -> Iterator[None]:
    assert AllocationCounter.install() == ""
    gc.collect()
    yield
    assert Pager.is_valid() == ""
    assert Pager.page_in() == ""
    assert Pager.bytes_out() == 0


def page_out() -> None:
    assert Pager.page_out(DIRECTORY) == ""
    assert Pager.is_valid() == ""


def page_in() -> None:
    assert Pager.page_in() == ""
    assert Pager.is_valid() == ""


def tensors(count: int = 10, size: int = MIB) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size // 4) for _ in range(count)]


def bits(found: list[torch.Tensor]) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in found]


def trained(count: int, between: Callable[[], None]) -> Bits:
    """Losses and weights, to the last bit; `between` is called after each iteration."""

    @contextmanager
    def iteration() -> Iterator[None]:
        yield
        between()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 160))
    optimizer, batch = torch.optim.Adam(model.parameters()), (torch.randn(160, 160), None)
    return bits_of(train(model, batch, count, optimizer, mean_square, iteration=iteration))


def memory_of(kind: str) -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) << 10 for line in rollup if line.startswith(f"{kind}:"))


def test_training_continues_to_the_last_bit_where_nothing_is_paged_in_by_itself() -> None:
    assert trained(100, page_out) == trained(100, lambda: None)


def test_memory_is_given_back_and_taken_again() -> None:
    kept = tensors(64)
    expected = bits(kept)
    before = memory_of("Rss"), memory_of("Anonymous")
    page_out()
    assert Pager.bytes_out() > 63 * MIB
    assert memory_of("Rss") < before[0] - 60 * MIB
    page_in()
    assert memory_of("Anonymous") > before[1] - MIB
    assert bits(kept) == expected


def test_small_tensors_stay_in() -> None:
    small = torch.zeros(1000)
    page_out()
    assert not is_out(small)


def test_arrays_that_share_a_tensors_memory_see_the_same() -> None:
    tensor = torch.arange(MIB)
    array = tensor.numpy()
    borrowed = np.arange(MIB)
    around = torch.from_numpy(borrowed)
    page_out()
    assert is_out(tensor)
    assert not is_out(around)  # numpy's memory, none of PyTorch's
    array += 1
    around += 1
    assert tensor[5] == 6
    page_in()
    assert np.array_equal(array, np.arange(MIB) + 1)
    assert np.array_equal(borrowed, array)
    assert torch.equal(tensor, around)


@pytest.mark.system
def test_a_model_that_was_there_before_the_hook_goes_out() -> None:
    """It runs in a process of its own, where nothing was installed before."""
    code = f"""
import torch
from jupyter_gpushare._core import Pager
torch.set_num_threads(1)
model = torch.nn.Linear(1000, 1000)
expected = model(torch.ones(1000)).sum().item()
from jupyter_gpushare.client.torch.memory import TorchMemory
TorchMemory()
assert Pager.page_out({DIRECTORY!r}) == "" and Pager.bytes_out() > 3_900_000
assert model(torch.ones(1000)).sum().item() == expected
assert Pager.page_in() == "" and model(torch.ones(1000)).sum().item() == expected
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_paged_out_memory_lies_in_a_file_that_no_other_process_can_open(tmp_path: Path) -> None:
    kept = tensors()
    assert Pager.page_out(str(tmp_path)) == ""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line for line in lines if f"{tmp_path}/gpushare-" in line]
    assert is_out(kept[0])
    assert mapped
    assert all(line.endswith("(deleted)") for line in mapped)
    assert list(tmp_path.iterdir()) == []
