"""The fake GPU is one to PyTorch: it is there, computes, and has its memory and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Run, Start

PROGRAM = "plain.py"
GIB = 1 << 30


def test_pytorch_finds_the_gpu_and_uses_its_own_allocator(run: Run) -> None:
    said = run(PROGRAM, "device", FAKE_CUDA_BYTES=str(GIB))
    assert said == {"is_available": True, "count": 1, "bytes": GIB, "backend": "native"}


@pytest.mark.parametrize("lazy", ["0", "1"], ids=["eager", "lazy"])
def test_copies_keep_their_bytes(lazy: str, run: Run) -> None:
    assert run(PROGRAM, "copies", FAKE_CUDA_LAZY=lazy) == [True, True, True]


@pytest.mark.parametrize("lazy", ["0", "1"], ids=["eager", "lazy"])
@pytest.mark.parametrize("model", ["perceptron", "cnn"])
def test_losses_are_those_of_the_cpu(model: str, lazy: str, run: Run) -> None:
    gpu, cpu = run(PROGRAM, "both", model, FAKE_CUDA_LAZY=lazy)
    assert gpu == pytest.approx(cpu, rel=1e-5)
    assert gpu[0] == cpu[0]
    assert gpu[-1] < gpu[0]


def test_the_driver_gives_away_what_the_allocator_reserves(run: Run) -> None:
    assert run(PROGRAM, "statistics") == {
        "with": [30, 30, 30],
        "without": [0, 30, 30],
        "emptied": [0, 0, 0],
    }


def test_memory_ends_where_capacity_does(run: Run) -> None:
    said = run(PROGRAM, "most", FAKE_CUDA_BYTES=str(GIB))
    assert said["mebibytes"] == 1024
    assert "CUDA out of memory" in said["words"]


def test_processes_have_one_capacity(start: Start) -> None:
    holder = start(PROGRAM, "holder", 600, FAKE_CUDA_BYTES=str(GIB))
    assert holder.says() == "taken"
    other = start(PROGRAM, "beside", 600, FAKE_CUDA_BYTES=str(GIB))
    assert other.says() == "asked"
    holder.go_on()
    assert holder.says() == "given back"
    other.go_on()
    assert other.answer() == [False, True]


def test_lazy_work_is_done_when_a_thread_waits_for_it(run: Run) -> None:
    assert run(PROGRAM, "late_work", FAKE_CUDA_LAZY="0") == [7, 7]
    assert run(PROGRAM, "late_work", FAKE_CUDA_LAZY="1") == [0, 7]
