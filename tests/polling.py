"""Waiting for events that are not announced, such as most events in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jupyter_gpushare.wire.client import Client

TIMEOUT_SECONDS = 60.0  # an event that has not come by then is lost
LOOK_SECONDS = 0.02


def comes(is_so: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> bool:
    """Return whether it becomes so within the time limit."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def until(is_so: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    """Return when it is so. Raises AssertionError if that takes longer than the time limit."""
    assert comes(is_so, seconds), f"it did not come about within {seconds:g} s"


def next_of(client: Client, kind: type) -> Any:
    """Return the next message of `kind`; messages before it are passed over."""
    while not isinstance(message := client.receive(), kind):
        pass
    return message
