"""Fixtures of these tests; a module says by its constants what its service is like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.settings import Settings, load

from .processes import Child


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Return the file of a rulebook."""
    return tmp_path / "rules.toml"


@pytest.fixture
def ruled(request: pytest.FixtureRequest, rules: Path) -> Callable[..., Service]:
    """Return a service of the module's DEVICES with these rules and settings."""

    def ruled(text: str, **own: Any) -> Service:
        rules.write_text(text)
        given = load({}, rulebook=str(rules), **own)
        return Service(given, request.module.DEVICES, started=0.0)

    return ruled


@pytest.fixture
def service(request: pytest.FixtureRequest, ruled: Callable[..., Service]) -> Service:
    """Return a service of the module's DEVICES, with its RULES and SETTINGS if it has them."""
    of = request.module
    return ruled(getattr(of, "RULES", ""), **getattr(of, "SETTINGS", {}))


@pytest.fixture
def notebook(request: pytest.FixtureRequest, service: Service) -> Iterator[Callable[..., Any]]:
    """Open a Notebook of the module at the service."""
    opened: list[Any] = []

    def notebook(*fields: Any, **more: Any) -> Any:
        opened.append(request.module.Notebook(service, *fields, **more))
        return opened[-1]

    yield notebook
    for each in opened:
        each.end()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Fork a Child, which ends with the test."""
    started: list[Child] = []

    def child(*fields: Any) -> Child:
        started.append(Child(*fields))
        return started[-1]

    yield child
    for each in started:
        each.end()


@pytest.fixture
def open_to_all(settings: Settings, broker_pid: int) -> None:
    """Other users may connect to the broker."""
    os.chmod(Path(settings.socket).parent, 0o711)
    os.chmod(settings.socket, 0o666)
