"""PyTorch takes the fake GPU for a real one: it computes, late if a test says so, and has its
memory and no more."""

from __future__ import annotations

from .conftest import Run, Start

PROGRAM = "plain.py"
GIB = 1 << 30


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
