"""The devices `cuda:N`, and `cuda:N:M` for a MIG slice: no CUDA context is ever made here."""

from __future__ import annotations

from functools import partial

from ..settings import Settings
from ..wire import chunks
from . import nvml
from .device import Device


def find(settings: Settings) -> list[Device]:
    """Return one device per GPU that the driver shows; none where there is no driver."""
    return [_device(gpu) for gpu in nvml.gpus()]


def _device(gpu: nvml.Gpu) -> Device:
    usage = partial(nvml.usage, gpu.uuid)
    chunk = chunks.chunk_bytes(gpu.capacity_bytes)
    memory = partial(chunks.KeptChunks, chunk)
    return Device(gpu.name, gpu.capacity_bytes, gpu.model, memory, chunk, gpu.uuid, usage)
