"""A lane on a GPU between two Python processes, on a driver that stands in for NVIDIA's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SESSIONS = Path(__file__).with_name("cuda_sessions.py")


def session(name: str, link: socket.socket, driver: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SESSIONS), name, str(link.fileno())],
        pass_fds=[link.fileno()],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
    )


@pytest.mark.system
def test_two_processes_use_one_lane_in_turn_and_survivors_stay_whole(driver: Path) -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        first = session("make_and_survive", ends[0], driver)
        second = session("take_and_overwrite", ends[1], driver)
    assert (first.wait(), second.wait()) == (0, 0)


def trouble(ordinal: int, driver: Path) -> str:
    program = f"from jupyter_gpushare import _core; print(_core.cuda_trouble({ordinal}))"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    run = [sys.executable, "-c", program]
    return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_gpu_that_cannot_have_lanes_says_why_without_being_used(driver: Path) -> None:
    assert trouble(0, driver) == "\n"
    assert trouble(1, driver).startswith("there is no such GPU: ")


def test_a_missing_driver_is_reported(tmp_path: Path) -> None:
    # found before the real one, if there is one
    (tmp_path / "libcuda.so.1").write_text("no library")
    assert trouble(0, tmp_path).startswith("there is no CUDA driver here: ")


def test_a_driver_that_is_too_old_is_reported(tmp_path: Path) -> None:
    build = [os.environ.get("CXX", "c++"), "-shared", "-x", "c++", "/dev/null"]
    subprocess.run([*build, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    assert trouble(0, tmp_path) == "libcuda.so.1 has no cuInit\n"
