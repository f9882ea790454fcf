"""The GPU that a number means in a process, as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
have it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.devices import visible
from jupyter_gpushare.devices.nvml import Gpu
from jupyter_gpushare.devices.visible import Visible
from jupyter_gpushare.errors import InvalidValue, UnknownDevice

if TYPE_CHECKING:
    from ...conftest import FakeGpus

A, B, C = (Gpu(f"cuda:{n}", f"GPU-{n}f", "NVIDIA L4", 1, n) for n in range(3))
FAST = Gpu("cuda:1", "GPU-1f", "NVIDIA H100", 1, 1)
SLICES = [
    Gpu(f"cuda:1:{n}", f"MIG-{n}f", f"NVIDIA H100 MIG {n}g.10gb", 1, 1, is_slice=True)
    for n in range(2)
]


def seen(there: list[Gpu], devices: str | None, order: str = "") -> Visible:
    environ = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    return Visible(there, environ | ({"CUDA_DEVICE_ORDER": order} if order else {}))


@pytest.mark.parametrize(
    ("devices", "numbered"),
    [
        (None, [A, B, C]),
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 2 , 0 ", [C, A]),
        ("1gpu2,2ampere", [B, C]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [B]),
        ("1,3,0", [B]),
        ("1,,0", [B]),
        ("none", []),
        ("1,0,1", []),
        ("GPU-2f,GPU-0f", [C, A]),
        ("GPU-2,GPU-0", [C, A]),
        ("GPU-", []),  # it means none of several
        ("GPU-2f,GPU-9,GPU-0f", [C]),
        ("GPU-2f,1", [C]),
        ("0,GPU-1f", [A]),
        ("GPU-2f,GPU-2", []),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(devices: str | None, numbered: list[Gpu]) -> None:
    assert seen([A, B, C], devices).numbered == numbered


@pytest.mark.parametrize(
    ("devices", "numbered"),
    [
        (None, [SLICES[0]]),
        ("0", [A]),
        ("1", [SLICES[0]]),
        ("0,1", [SLICES[0]]),
        ("MIG-1f", [SLICES[1]]),
        ("MIG-1f,MIG-0f", [SLICES[1]]),
        ("GPU-0f", [A]),
    ],
)
def test_cuda_shows_one_slice_and_no_card_beside_it(
    devices: str | None, numbered: list[Gpu]
) -> None:
    assert seen([A, *SLICES], devices, "PCI_BUS_ID").numbered == numbered


def test_numbers_of_different_cards_are_known_in_the_order_of_the_bus_alone() -> None:
    assert seen([A, FAST], None, "PCI_BUS_ID").named("cuda:1") == FAST
    assert seen([A, FAST], "1,0", "PCI_BUS_ID").named("cuda:1") == A
    assert seen([A, FAST], "GPU-1f").named("cuda:0") == FAST
    for devices in (None, "1"):
        with pytest.raises(InvalidValue, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            seen([A, FAST], devices).named("cuda:0")


def test_slices_of_one_card_are_in_order() -> None:
    assert seen(SLICES, "1").named("cuda:0") == SLICES[0]
    with pytest.raises(InvalidValue):
        seen([A, *SLICES], "0").named("cuda:0")


def test_in_doubt_a_uuid_still_says_which() -> None:
    assert seen([A, FAST], None).named("GPU-1f") == FAST
    assert seen([A, FAST], None).number_of("GPU-1f") is None
    there = r"there is GPU-0f \(NVIDIA L4\), GPU-1f \(NVIDIA H100\), host"
    with pytest.raises(UnknownDevice, match=there):
        seen([A, FAST], None).named("GPU-7")


def test_a_gpu_that_is_not_visible_is_refused_with_the_visible_ones() -> None:
    for name in ("cuda:1", "GPU-1f", "cuda:x", "tpu"):
        with pytest.raises(UnknownDevice) as raised:
            seen([A, B, C], "2").named(name)
        assert str(raised.value) == (
            f"there is no device {name!r} here; there is cuda:0 (NVIDIA L4), host"
            " (with CUDA_VISIBLE_DEVICES='2')"
        )


def test_without_a_gpu_there_is_the_host() -> None:
    with pytest.raises(UnknownDevice, match=r"^there is no device 'cuda:0' here; there is host$"):
        seen([], None).named("cuda:0")


def test_a_slice_is_named_as_nvidia_smi_numbers_it() -> None:
    assert seen([A, *SLICES], None, "PCI_BUS_ID").named("cuda:1:1") == SLICES[1]


# --- questions to the broker ----------------------------------------------------------------------

TWO = ("gpu GPU-0f 1000 0 NVIDIA L4", "gpu GPU-1f 1000 0 NVIDIA L4")


def test_a_number_is_asked_for_by_its_uuid(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.say(*TWO)
    assert visible.wanted("cuda:1") == ("GPU-1f", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible.wanted("cuda:0") == visible.wanted("cuda") == ("GPU-1f", [])
    assert visible.wanted("host") == ("host", [])


@pytest.mark.usefixtures("before_cuda")
def test_auto_asks_among_the_visible_ones_or_for_the_host(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.say(*TWO)
    assert visible.wanted("auto") == ("auto", ["GPU-0f", "GPU-1f"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible.wanted("auto") == ("auto", ["GPU-1f"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible.wanted("auto") == ("host", [])


@pytest.mark.usefixtures("before_cuda")
def test_a_gpu_of_many_becomes_the_only_one(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.say(*TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible.settle("cuda:1", "GPU-1f") == "cuda:1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert visible.settle("auto", "GPU-1f") == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1f"
    assert visible.as_at_first(os.environ)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert visible.wanted("cuda:0") == ("GPU-1f", [])


def test_the_only_gpu_stays_as_it_is_visible(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.say(*TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible.settle("auto", "GPU-1f") == "cuda:0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


CUDA_RUNS = """
import ctypes, os
from jupyter_gpushare.devices import visible
from jupyter_gpushare.errors import InvalidValue
assert not visible.has_begun()
ctypes.CDLL("libcuda.so.1")
assert visible.has_begun()
assert visible.wanted("auto") == ("GPU-0f", [])
assert visible.settle("auto", "GPU-1f") == "cuda:1"
assert "CUDA_VISIBLE_DEVICES" not in os.environ
"""


def test_where_cuda_runs_already_auto_is_the_first_and_nothing_is_renumbered(
    gpus: FakeGpus,
) -> None:
    gpus.say(*TWO)
    subprocess.run([sys.executable, "-c", CUDA_RUNS], check=True)


def test_where_cuda_runs_already_a_slice_that_it_does_not_show_is_refused(gpus: FakeGpus) -> None:
    slices = [f"slice MIG-{n} 1000 0 MIG" for n in range(2)]
    gpus.say("gpu GPU-0 1000 0 NVIDIA H100", "mig", *slices)
    code = CUDA_RUNS.partition("assert visible.wanted")[0] + (
        "assert visible.wanted('cuda:0:0') == ('MIG-0', [])\n"
        "try: visible.wanted('cuda:0:1')\n"
        "except InvalidValue as error: assert 'restart the kernel' in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
