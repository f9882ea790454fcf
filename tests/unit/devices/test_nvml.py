"""Facts about GPUs, from an NVML that a test configures."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.devices import find_all, nvml
from jupyter_gpushare.devices.nvml import GpuUse
from jupyter_gpushare.settings import load

if TYPE_CHECKING:
    from ...conftest import FakeGpus

GIB = 1 << 30
CARD = f"gpu GPU-a {16 * GIB} {GIB} NVIDIA L4"
SLICED = (
    f"gpu GPU-m {80 * GIB} {GIB} NVIDIA H100",
    "mig",
    f"slice MIG-0 {10 * GIB} 0 NVIDIA H100 MIG 1g.10gb",
    "gap",
    f"slice MIG-2 {20 * GIB} {GIB} NVIDIA H100 MIG 2g.20gb",
)


def test_the_capacity_of_a_card_excludes_the_reserve_of_the_driver(gpus: FakeGpus) -> None:
    gpus.say(CARD)
    (gpu,) = nvml.gpus()
    assert gpu == nvml.Gpu("cuda:0", "GPU-a", "NVIDIA L4", 15 * GIB, 0)


def test_an_old_driver_does_not_tell_its_reserve(gpus: FakeGpus) -> None:
    gpus.say(CARD, "fail nvmlDeviceGetMemoryInfo_v2 13")
    assert nvml.gpus()[0].capacity_bytes == 16 * GIB
    assert nvml.usage("GPU-a") == GpuUse(GIB, {})


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ([CARD, *SLICED], ["cuda:0", "cuda:1:0", "cuda:1:2"]),
        ([*SLICED[:2], CARD], ["cuda:1"]),
        ([CARD, "fail nvmlDeviceGetMigMode 3"], ["cuda:0"]),
    ],
    ids=["slices", "MIG without slices", "no MIG"],
)
def test_a_card_in_mig_mode_is_its_slices(
    gpus: FakeGpus, said: list[str], names: list[str]
) -> None:
    gpus.say(*said)
    assert [gpu.name for gpu in nvml.gpus()] == names


def test_a_slice_is_told_with_its_own_capacity_and_its_card(gpus: FakeGpus) -> None:
    gpus.say(CARD, *SLICED)
    last = nvml.gpus()[-1]
    assert (last.uuid, last.capacity_bytes, last.card) == ("MIG-2", 19 * GIB, 1)


def test_without_a_driver_there_is_no_gpu(gpus: FakeGpus) -> None:
    assert nvml.gpus() == []
    assert nvml.usage("GPU-a") is None
    version, reason = nvml.driver()
    assert not version
    assert "Driver Not Loaded" in reason


def test_without_its_library_there_is_no_gpu_either() -> None:
    code = "from jupyter_gpushare.devices import nvml; print(nvml.LIBRARY); nvml.LIBRARY = 'no.so'"
    code += "; assert nvml.gpus() == [] and 'no.so' in nvml.driver()[1]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_driver_tells_its_version(gpus: FakeGpus) -> None:
    gpus.say("driver 580.65.06", CARD)
    assert nvml.driver() == ("580.65.06", "")


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_call_that_fails_is_no_gpu_and_no_error(gpus: FakeGpus, call: str) -> None:
    gpus.say(CARD, f"fail {call} 999")
    assert nvml.gpus() == []


# --- processes that have its memory ---------------------------------------------------------------


LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ([f"process 11 {GIB}", "process 12 5"], GpuUse(GIB + 5, {11: GIB, 12: 5})),
        (
            ["process 11 7", "graphics 11 7", "graphics 12 5", "used 12"],
            GpuUse(12, {11: 7, 12: 5}),
        ),
        (["process 11 -1", "used 3"], GpuUse(3, {11: None})),
        (["process 11 7", *(f"fail {name} 3" for name in LISTS)], GpuUse(7, {})),
    ],
    ids=["each", "one that computes and draws", "no bytes of a process", "no processes"],
)
def test_the_usage_is_what_the_driver_tells(gpus: FakeGpus, said: list[str], usage: GpuUse) -> None:
    gpus.say(CARD, *said)
    assert nvml.usage("GPU-a") == usage
    assert nvml.process_bytes("GPU-a", 12) == usage.processes.get(12)


def test_a_slice_tells_its_own_processes(gpus: FakeGpus) -> None:
    gpus.say(*SLICED, "process 11 7")
    assert nvml.usage("MIG-2") == GpuUse(7, {11: 7})
    assert nvml.usage("MIG-0") == GpuUse(0, {})
    assert nvml.usage("GPU-other") is None


# --- devices --------------------------------------------------------------------------------------


def test_the_broker_shares_every_gpu_and_the_host(gpus: FakeGpus) -> None:
    gpus.say(CARD, *SLICED, "process 11 7")
    found = find_all(load({"CUDA_VISIBLE_DEVICES": ""}))
    assert [device.name for device in found] == ["cuda:0", "cuda:1:0", "cuda:1:2", "host"]
    usages = [device.usage() for device in found if device.usage]
    assert [usage and usage.used_bytes for usage in usages] == [0, 0, 7]
