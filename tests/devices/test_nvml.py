"""Facts about GPUs, from an NVML that a test configures."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.devices import find_all, nvml
from jupyter_gpushare.devices.nvml import Usage
from jupyter_gpushare.settings import load

if TYPE_CHECKING:
    from ..conftest import FakeGpus

GIB = 1 << 30
CARD = f"gpu GPU-a {16 * GIB} {GIB} NVIDIA L4"
SLICED = (
    f"gpu GPU-m {80 * GIB} {GIB} NVIDIA H100",
    "mig",
    f"slice MIG-0 {10 * GIB} 0 NVIDIA H100 MIG 1g.10gb",
    "gap",
    f"slice MIG-2 {20 * GIB} {GIB} NVIDIA H100 MIG 2g.20gb",
)


def names() -> list[str]:
    return [gpu.name for gpu in nvml.gpus()]


def test_the_capacity_of_a_card_excludes_the_reserve_of_the_driver(gpus: FakeGpus) -> None:
    gpus.say(CARD)
    (gpu,) = nvml.gpus()
    assert gpu == nvml.Gpu("cuda:0", "GPU-a", "NVIDIA L4", 15 * GIB, 0)


def test_an_old_driver_does_not_tell_its_reserve(gpus: FakeGpus) -> None:
    gpus.say(CARD, "fail nvmlDeviceGetMemoryInfo_v2 13")
    assert nvml.gpus()[0].capacity_bytes == 16 * GIB
    assert nvml.usage("GPU-a") == Usage(GIB, {})


def test_a_card_in_mig_mode_is_its_slices(gpus: FakeGpus) -> None:
    gpus.say(CARD, *SLICED)
    assert names() == ["cuda:0", "cuda:1:0", "cuda:1:2"]
    last = nvml.gpus()[-1]
    assert (last.uuid, last.capacity_bytes, last.card) == ("MIG-2", 19 * GIB, 1)


def test_a_card_in_mig_mode_without_slices_is_nothing(gpus: FakeGpus) -> None:
    gpus.say(*SLICED[:2], CARD)
    assert names() == ["cuda:1"]


def test_a_card_that_does_not_know_mig_is_whole(gpus: FakeGpus) -> None:
    gpus.say(CARD, "fail nvmlDeviceGetMigMode 3")
    assert names() == ["cuda:0"]


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


def test_processes_are_told_with_their_memory(gpus: FakeGpus) -> None:
    gpus.say(CARD, f"process 11 {GIB}", f"process 12 {2 * GIB}")
    assert nvml.usage("GPU-a") == Usage(3 * GIB, {11: GIB, 12: 2 * GIB})
    assert nvml.process_bytes("GPU-a", 12) == 2 * GIB
    assert nvml.process_bytes("GPU-a", 13) is None


def test_a_process_that_computes_and_draws_counts_once(gpus: FakeGpus) -> None:
    gpus.say(CARD, f"process 11 {GIB}", f"graphics 11 {GIB}", "graphics 12 5", f"used {GIB + 5}")
    assert nvml.usage("GPU-a") == Usage(GIB + 5, {11: GIB, 12: 5})


def test_a_driver_that_tells_no_bytes_tells_the_processes(gpus: FakeGpus) -> None:
    gpus.say(CARD, "process 11 -1", f"used {3 * GIB}")
    assert nvml.usage("GPU-a") == Usage(3 * GIB, {11: None})


def test_a_driver_that_lists_no_processes_tells_what_is_used(gpus: FakeGpus) -> None:
    lists = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
    gpus.say(CARD, "process 11 7", *(f"fail {name} 3" for name in lists))
    assert nvml.usage("GPU-a") == Usage(7, {})


def test_a_slice_tells_its_own_processes(gpus: FakeGpus) -> None:
    gpus.say(*SLICED, "process 11 7")
    assert nvml.usage("MIG-2") == Usage(7, {11: 7})
    assert nvml.usage("MIG-0") == Usage(0, {})
    assert nvml.usage("GPU-other") is None


# --- devices --------------------------------------------------------------------------------------


def test_the_broker_shares_every_gpu_and_the_host(gpus: FakeGpus) -> None:
    gpus.say(CARD, *SLICED, "process 11 7")
    found = find_all(load({"CUDA_VISIBLE_DEVICES": ""}))
    assert [device.name for device in found] == ["cuda:0", "cuda:1:0", "cuda:1:2", "host"]
    usages = [device.usage() for device in found if device.usage]
    assert [usage and usage.used_bytes for usage in usages] == [0, 0, 7]
