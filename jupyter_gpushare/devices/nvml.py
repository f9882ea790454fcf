"""NVML's view: the GPUs of this host or container, and the processes that use their memory.

It makes no CUDA context. NVML counts GPUs in the order of the PCI bus and shows all of them,
whatever `CUDA_VISIBLE_DEVICES` says. Nothing here raises: figures that NVML does not report are
absent.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

LIBRARY = "libnvidia-ml.so.1"

Answer = TypeVar("Answer")


class Gpu(NamedTuple):
    """A device in the sense of CUDA: a card, or a slice (MIG device) of the card of that number.

    `name` is what users type: ``cuda:0`` is a card, ``cuda:0:1`` the slice 1 of card 0, as
    nvidia-smi numbers both. `capacity_bytes` excludes the memory that the driver reserves for
    itself.
    """

    name: str
    uuid: str
    model: str
    capacity_bytes: int
    card: int
    is_slice: bool = False


class GpuUse(NamedTuple):
    """The use of a GPU: `used_bytes` of its capacity are taken, by all processes together.

    `processes` are bytes by process id; None as bytes if the driver does not report them.
    """

    used_bytes: int
    processes: Mapping[int, int | None]


def gpus() -> list[Gpu]:
    """Return the GPUs of this host or container; none where there is no driver.

    A card in MIG mode appears as its slices: nothing can run on the card itself.
    """
    return _ask(lambda nvml: list(_gpus(nvml)), [])


def usage(uuid: str) -> GpuUse | None:
    return _ask(lambda nvml: _usage(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid.encode())), None)


def process_bytes(uuid: str, pid: int) -> int | None:
    """Return the bytes that a process has on this GPU, its CUDA context included."""
    seen = usage(uuid)
    return None if seen is None else seen.processes.get(pid)


def driver() -> tuple[str, str]:
    """Return the driver's version and the reason why it does not answer; one of the two is
    empty."""
    try:
        return str(_opened().nvmlSystemGetDriverVersion()), ""
    except Exception as error:
        return "", str(error)


def _ask(question: Callable[[Any], Answer], otherwise: Answer) -> Answer:
    # Every error of NVML is an exception of pynvml, and not all of those have one base class.
    with contextlib.suppress(Exception):
        return question(_opened())
    return otherwise


_is_open = False


def _opened() -> Any:
    """Return pynvml. NVML stays open in this process, since opening it may take a second."""
    global _is_open
    ctypes.CDLL(LIBRARY)  # an OSError where there is none: this is cheaper than to import pynvml
    import pynvml

    if not _is_open:
        pynvml.nvmlInit()
        _is_open = True
    return pynvml


def _gpus(nvml: Any) -> Iterator[Gpu]:
    for index in range(nvml.nvmlDeviceGetCount()):
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        if _is_sliced(nvml, card):
            for number, handle in _slices(nvml, card):
                yield _gpu(nvml, handle, f"cuda:{index}:{number}", index, True)
        else:
            yield _gpu(nvml, card, f"cuda:{index}", index, False)


def _gpu(nvml: Any, handle: Any, name: str, index: int, is_slice: bool) -> Gpu:
    memory, reserved = _memory(nvml, handle)
    uuid, model = str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))
    return Gpu(name, uuid, model, int(memory.total) - reserved, index, is_slice)


def _is_sliced(nvml: Any, card: Any) -> bool:
    with contextlib.suppress(nvml.NVMLError):  # most cards do not know MIG
        return bool(nvml.nvmlDeviceGetMigMode(card)[0])
    return False


def _slices(nvml: Any, card: Any) -> Iterator[tuple[int, Any]]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        with contextlib.suppress(nvml.NVMLError):  # numbers have gaps
            yield number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number)


def _memory(nvml: Any, handle: Any) -> tuple[Any, int]:
    """Return total and used bytes, and the driver's reserve; older drivers count that as used."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetMemoryInfo(handle), 0
    return memory, int(memory.reserved)


def _usage(nvml: Any, handle: Any) -> GpuUse:
    memory, _ = _memory(nvml, handle)
    processes: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):  # a process of both kinds is in both lists
        processes |= {process.pid: process.usedGpuMemory for process in _list(nvml, kind, handle)}
    return GpuUse(int(memory.used), processes)


def _list(nvml: Any, kind: str, handle: Any) -> list[Any]:
    for version in ("_v3", "_v2"):  # drivers before 510 have the latter
        with contextlib.suppress(nvml.NVMLError):
            found: list[Any] = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(
                handle
            )
            return found
    return []
