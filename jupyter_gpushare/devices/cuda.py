"""The devices `cuda:N`, found through NVML: no CUDA context is ever made here."""

from __future__ import annotations

from functools import partial

from .. import chunks
from ..settings import Settings
from .device import Device


def find(settings: Settings) -> list[Device]:
    """One device per GPU that the driver shows; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml: object, index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)  # type: ignore[attr-defined]
    name = str(pynvml.nvmlDeviceGetName(handle))  # type: ignore[attr-defined]
    chunk = chunks.chunk_bytes(total)
    return Device(f"cuda:{index}", total, name, partial(chunks.Kept, chunk), chunk)
