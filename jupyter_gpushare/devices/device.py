"""What the broker knows of a device."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """`name` as users type it (host, cuda:0); `capacity_bytes` is what may be shared out."""

    name: str
    capacity_bytes: int
    description: str
