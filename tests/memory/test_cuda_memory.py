"""A lane on a GPU between two Python processes, on a driver that stands in for NVIDIA's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = Path(__file__).with_name("cuda_sessions.py")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda.so.1 whose GPU is main memory."""
    folder = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "fake_driver" / "fake_driver.cpp"
    build = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"]
    subprocess.run(
        [*build, f"-I{ROOT / 'csrc'}", str(source), "-o", str(folder / "libcuda.so.1")], check=True
    )
    return folder


def session(name: str, link: socket.socket, driver: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SESSIONS), name, str(link.fileno())],
        pass_fds=[link.fileno()],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
    )


def test_two_processes_have_one_lane_in_turn_and_what_survives_is_whole(driver: Path) -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        first = session("make_and_survive", ends[0], driver)
        second = session("take_and_overwrite", ends[1], driver)
    assert (first.wait(), second.wait()) == (0, 0)
