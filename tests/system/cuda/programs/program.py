"""The frame of all programs of these tests: ``PROGRAM FUNCTION ARGUMENTS``; the last line is
JSON."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MIB = 1 << 20
Bytes = dict[int, int]  # of a GPU's memory, by the number of the file that each is


def has(process: int, gpu: int, host: str) -> Bytes:
    """Return the memory of a GPU that a process has; nothing once the process has ended."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed just now
                if os.readlink(entry).startswith(f"/memfd:fake-gpu-{gpu}-{host} "):
                    found[entry.stat().st_ino] = entry.stat().st_size
    return found


def control(name: str) -> Any:
    """Return a function of the fake driver that takes numbers; see
    tests/stand_ins/driver/fake_driver.h."""
    return getattr(ctypes.CDLL("libcuda.so.1"), f"_ZN11fake_driver{len(name)}{name}Emi")


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """This process gets no more of the GPU's memory during the block."""
    set_capacity = control("set_capacity")
    set_capacity(ctypes.c_size_t(0), 0)
    yield
    set_capacity(ctypes.c_size_t(int(os.environ["FAKE_CUDA_BYTES"])), 0)


def say(line: str) -> None:
    """Print a line, and wait until the test lets this process go on."""
    print(line, flush=True)
    sys.stdin.readline()


def main(functions: Mapping[str, Any]) -> None:
    faulthandler.enable()
    answer = functions[sys.argv[1]](*json.loads(sys.argv[2]))
    print("\n" + json.dumps(answer), flush=True)
