"""The lockstep host leaves the system to other tests as it was."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from jupyter_gpushare.wire import client, mailbox

from .host import SESSION_MODULE, Host

IS_REAL = {"threading": threading, "select": select, "time": time, "Mailbox": mailbox.Mailbox}


class HostWithoutBroker(Host):
    def start_broker(self) -> None:
        raise OSError("no broker starts here")


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_a_host_that_cannot_begin_undoes_what_it_has_done() -> None:
    connect, before = client.launch.connect, len(descriptors())
    with pytest.raises(OSError, match="no broker starts here"):
        HostWithoutBroker()
    assert {name: getattr(SESSION_MODULE, name) for name in IS_REAL} == IS_REAL
    assert client.select is select
    assert client.launch.connect is connect
    assert len(descriptors()) == before


def test_a_host_that_ends_in_disorder_undoes_what_it_has_done() -> None:
    """It happens where a notebook cannot be killed."""
    host = Host()
    host.notebooks.append(None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        host.close()
    assert {name: getattr(SESSION_MODULE, name) for name in IS_REAL} == IS_REAL
    assert host.broker is None
