"""Memory of a GPU that CUDA itself takes counts, whether the driver tells it or not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.devices.cuda_context import LOOKS, CudaContext

if TYPE_CHECKING:
    from ...conftest import FakeGpus

MIB = 1 << 20
CARDS = [f"gpu GPU-{name} {16 << 30} 0 NVIDIA L4" for name in "ab"]


def own(size: int) -> str:
    return f"process {os.getpid()} {size}"


def test_it_is_the_memory_of_the_process_beyond_its_tensors(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpus.say(*CARDS, own(700 * MIB))
    context = CudaContext("cuda:0")
    assert context.bytes == 0
    context.look(300 * MIB)
    assert context.bytes == 400 * MIB


def test_it_grows_with_the_libraries_and_only_a_few_calls_ask_for_it(gpus: FakeGpus) -> None:
    gpus.say(*CARDS)
    context = CudaContext("cuda:0")
    for size in range(1, LOOKS + 3):
        gpus.say(CARDS[0], own(size * MIB), CARDS[1])
        context.look(0)
    assert context.bytes == LOOKS * MIB


@pytest.mark.parametrize("said", [[*CARDS], [CARDS[0], "process 1 5"], [CARDS[0], own(-1)], []])
def test_where_the_driver_does_not_tell_the_setting_does(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_CUDA_CONTEXT_BYTES", "77")
    gpus.say(*said)
    context = CudaContext("cuda:0")
    context.look(300 * MIB)
    assert context.bytes == 77


PROCESS = """
import ctypes, os
from jupyter_gpushare.client.session.memory import ProcessOnGpu
from jupyter_gpushare.wire.demand import Demand
memory = ProcessOnGpu("GPU-a")
assert memory.demand() == Demand(0, 0, measured=False)
ctypes.CDLL("libcuda.so.1")
def say(size):
    with open(os.environ["FAKE_NVML"], "w") as file:
        file.write(f"gpu GPU-a 1000 0 NVIDIA L4\\nprocess {os.getpid()} {size}\\n")
say(40)
assert memory.demand() == Demand(40, 0, measured=True)
"""


def test_a_process_without_pytorch_is_counted_whole_once_cuda_runs_in_it(gpus: FakeGpus) -> None:
    subprocess.run([sys.executable, "-c", PROCESS], check=True)
