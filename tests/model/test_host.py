"""The lockstep host leaves the system to other tests as it was."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from jupyter_gpushare.wire import client, handoff_slot

from .host import CLIENT_MODULES, SESSION_MODULE, Host

REAL = {"threading": threading, "select": select, "time": time}


class HostWithoutBroker(Host):
    def start_broker(self) -> None:
        raise OSError("no broker starts here")


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def replaced() -> list[str]:
    """Names in the modules of the client that do not mean what they do in a process of a user."""
    found = [(module, name) for module in CLIENT_MODULES for name in REAL if hasattr(module, name)]
    assert {name for _, name in found} == REAL.keys()
    names = [
        f"{module.__name__}.{name}" for module, name in found if vars(module)[name] != REAL[name]
    ]
    is_real = SESSION_MODULE.HandoffSlot is handoff_slot.HandoffSlot
    return names if is_real else [*names, "HandoffSlot"]


def test_a_host_that_cannot_begin_undoes_what_it_has_done() -> None:
    connect, before = client.launch.connect, len(descriptors())
    with pytest.raises(OSError, match="no broker starts here"):
        HostWithoutBroker()
    assert replaced() == []
    assert client.select is select
    assert client.launch.connect is connect
    assert len(descriptors()) == before


def test_a_host_that_ends_in_disorder_undoes_what_it_has_done() -> None:
    """It happens where a notebook cannot be killed."""
    host = Host()
    host.notebooks.append(None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        host.close()
    assert replaced() == []
    assert host.broker is None
