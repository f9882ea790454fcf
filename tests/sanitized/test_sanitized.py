"""What tests.sanitized runs is what it says, or its silence would mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare import _core

MODULE = os.environ.get("SANITIZED_CORE", "")
pytestmark = pytest.mark.skipif(not MODULE, reason="`make test-bindings` has it")


def test_the_module_is_the_sanitized_one() -> None:
    assert _core.__file__ == MODULE
    code = Path(MODULE).read_bytes()
    assert b"__asan_report_load8" in code
    assert b"__ubsan_handle_type_mismatch" in code


def test_so_it_is_in_the_processes_that_tests_start() -> None:
    says = "from jupyter_gpushare import _core; print(_core.__file__)"
    assert subprocess.check_output([sys.executable, "-c", says], text=True).strip() == MODULE


def test_a_write_past_the_end_of_a_block_ends_the_process() -> None:
    """In main memory that any part of the process has asked for."""
    wrong = "import ctypes; ctypes.memset(ctypes.create_string_buffer(1000), 0, 1001)"
    ended = subprocess.run([sys.executable, "-c", wrong], capture_output=True, text=True)
    assert ended.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ended.stderr
