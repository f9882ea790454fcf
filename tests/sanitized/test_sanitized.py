"""The tests that tests.sanitized runs use the sanitized module, or its silence would mean
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare import _core

MODULES, KIND = os.environ.get("SANITIZED_CORE", ""), os.environ.get("SANITIZED_WITH", "")
CALLS = {
    "address,undefined": (b"__asan_report_load8", b"__ubsan_handle_type_mismatch"),
    "thread": (b"__tsan_read8", b"__tsan_func_entry"),
}
RACE = """
from threading import Thread
from jupyter_gpushare._core import Cell, Conduct, Demand, Job, Simulation
jobs = [Job(f"{n}", [Cell(50_000, 0.05)], demand=Demand(1, 1)) for n in range(20)]
simulation = Simulation(jobs, 100, conduct=Conduct(steps=True))
runs = Thread(target=simulation.run)
runs.start()
while runs.is_alive():
    simulation.now
"""
pytestmark = pytest.mark.skipif(not MODULES, reason="`make test-bindings` has it")


def test_the_module_is_the_sanitized_one() -> None:
    assert str(Path(_core.__file__).parent) == MODULES
    code = Path(_core.__file__).read_bytes()
    assert all(call in code for call in CALLS[KIND])


def test_processes_that_tests_start_use_it_too() -> None:
    code = "from jupyter_gpushare import _core; print(_core.__file__)"
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert told.strip() == _core.__file__


@pytest.mark.skipif(KIND == "thread", reason="that is another sanitizer's")
def test_a_write_past_the_end_of_a_block_ends_the_process() -> None:
    """The block lies in main memory, and any part of the process may have asked for it."""
    wrong = "import ctypes; ctypes.memset(ctypes.create_string_buffer(1000), 0, 1001)"
    assert "AddressSanitizer: heap-buffer-overflow" in last_words(wrong)


@pytest.mark.skipif(KIND != "thread", reason="that is the thread sanitizer's")
def test_reading_a_simulation_that_runs_in_another_thread_ends_the_process() -> None:
    """It has no lock, and runs without Python's."""
    assert "ThreadSanitizer: data race" in last_words(RACE)


def last_words(program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode != 0
    return ended.stderr
