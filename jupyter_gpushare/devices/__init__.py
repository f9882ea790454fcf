"""The devices that a broker can share. One file and one row of `KINDS` per kind.

A kind tells which devices of it this machine has; it allocates nothing on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..settings import Settings
from . import cuda, host
from .device import Device

__all__ = ["KINDS", "Device", "Kind", "find_all"]


class Kind(NamedTuple):
    """`find` returns the devices of a kind, in their order; an empty list where there are none."""

    name: str
    find: Callable[[Settings], list[Device]]


# The order in which people see them. `auto` means a GPU where there is one.
KINDS = (Kind("cuda", cuda.find), Kind("host", host.find))


def find_all(settings: Settings) -> list[Device]:
    """Return every device of this machine; the list is never empty, since `host` is always
    there."""
    return [device for kind in KINDS for device in kind.find(settings)]
