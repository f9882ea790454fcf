"""Finds the processes of this server's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def processes(kernels: Any) -> Iterator[tuple[str, int]]:
    """Yield the ids and process ids of the kernels that are processes of this machine."""
    for name in kernels.list_kernel_ids():
        provisioner = getattr(kernels.get_kernel(name), "provisioner", None)
        if (pid := getattr(provisioner, "pid", None)) is not None:
            yield name, int(pid)
