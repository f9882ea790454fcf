"""Memory of a GPU that belongs to no tensor: what CUDA itself takes in this process.

A CUDA context is hundreds of MB, and each process has one of its own. It lives as long as the
process, so it counts as persistent.
"""

from __future__ import annotations

import os

from ..errors import GpuShareError
from ..settings import load
from . import nvml
from .visible import Visible

LOOKS = 4  # measurements, at the first iterations, which do not use a lane


class CudaContext:
    """The context of this process on its `cuda:N`; `bytes` is its known size, 0 before CUDA runs
    here.

    The size is the memory that the driver reports for this process, less the bytes that PyTorch has
    reserved. If the driver reports none, as in most containers, it is the setting
    `cuda_context_bytes`.
    """

    def __init__(self, device: str) -> None:
        try:
            self._uuid = Visible(nvml.gpus()).named(device).uuid
        except GpuShareError:  # the driver knows no device of that name
            self._uuid = ""
        self._looks = 0
        self.bytes = 0

    def look(self, reserved: int) -> None:
        """Measure the context while CUDA runs and PyTorch has reserved `reserved` bytes. Only the
        first calls ask the driver."""
        if self._looks < LOOKS:
            self._looks += 1
            self.bytes = max(self.bytes, context_bytes(self._uuid, reserved))


def context_bytes(uuid: str, reserved: int) -> int:
    has = nvml.process_bytes(uuid, os.getpid()) if uuid else None
    return load().cuda_context_bytes if has is None else max(0, has - reserved)
