"""What the system says of one page of this process's memory."""

from __future__ import annotations

import os

import torch

PAGE = os.sysconf("SC_PAGESIZE")
ENTRY = 8  # bytes, in /proc/self/pagemap
IN_MEMORY, SWAPPED, OF_A_FILE = (1 << bit for bit in (63, 62, 61))


def is_out(tensor: torch.Tensor) -> bool:
    """Whether the middle of the tensor has no memory of its own: it lies in a file."""
    page = (tensor.data_ptr() + tensor.nbytes // 2) // PAGE
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        entry = int.from_bytes(os.pread(pages.fileno(), ENTRY, page * ENTRY), "little")
    return not entry & (IN_MEMORY | SWAPPED) or bool(entry & OF_A_FILE)
