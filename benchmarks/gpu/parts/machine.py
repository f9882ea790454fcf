"""Facts about a machine that a reader of its figures needs. Each is found by itself, because any
may fail."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..places import IS_HOST, say


def system() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def ours() -> dict[str, Any]:
    from jupyter_gpushare import __version__, _core

    return {"jupyter_gpushare": __version__, "module": Path(_core.__file__).name}


def compiler() -> dict[str, Any]:
    name = os.environ.get("CXX", "c++")
    if shutil.which(name) is None:
        return {"compiler": "none"}
    ran = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=20)
    return {"compiler": ran.stdout.partition("\n")[0]}


def pytorch() -> dict[str, Any]:
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda}


def gpu() -> dict[str, Any]:
    """Ask NVML, which makes no context."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            "gpu": pynvml.nvmlDeviceGetName(handle),
            "gpus": pynvml.nvmlDeviceGetCount(),
            "gpu_bytes": memory.total,
            "gpu_bytes_used_before": memory.used,
            "driver": pynvml.nvmlSystemGetDriverVersion(),
        }
    finally:
        pynvml.nvmlShutdown()


def why_no_lane() -> dict[str, Any]:
    from jupyter_gpushare.client.torch.lanes.cuda_lane import why_not

    return {"why_no_lane": why_not()}


LOOKS: tuple[Callable[[], dict[str, Any]], ...] = (system, ours, compiler, pytorch)
LOOKS_AT_A_GPU: tuple[Callable[[], dict[str, Any]], ...] = (gpu, why_no_lane)


def main() -> int:
    failed = 0
    for look in LOOKS if IS_HOST else LOOKS + LOOKS_AT_A_GPU:
        try:
            say(machine=look())
        except Exception as error:
            say(error=f"{look.__name__}: {type(error).__name__}: {error}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
