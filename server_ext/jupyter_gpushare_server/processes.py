"""Which processes the kernels of this server are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def processes(kernels: Any) -> Iterator[tuple[str, int]]:
    """Return kernels by id, with their process ids, as far as they are processes of this
    machine."""
    for name in kernels.list_kernel_ids():
        provisioner = getattr(kernels.get_kernel(name), "provisioner", None)
        if (pid := getattr(provisioner, "pid", None)) is not None:
            yield name, int(pid)
