"""Fixtures of these tests. Constants of a test module configure its service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.settings import Settings, load

from ...makers import maker
from .processes import Child

Forks = Callable[..., Child]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Write a rulebook, and return its file."""
    return tmp_path / "rules.toml"


@pytest.fixture
def ruled(request: pytest.FixtureRequest, rules: Path) -> Callable[..., Service]:
    """Make a service of the module's DEVICES with these rules and settings."""

    def ruled(text: str, **own: Any) -> Service:
        rules.write_text(text)
        given = load({}, rulebook=str(rules), **own)
        return Service(given, request.module.DEVICES, started=0.0)

    return ruled


@pytest.fixture
def service(request: pytest.FixtureRequest, ruled: Callable[..., Service]) -> Service:
    """A service of the module's DEVICES, with the module's RULES and SETTINGS if there are any."""
    of = request.module
    return ruled(getattr(of, "RULES", ""), **getattr(of, "SETTINGS", {}))


@pytest.fixture
def notebook(request: pytest.FixtureRequest, service: Service) -> Iterator[Callable[..., Any]]:
    """Open a Notebook, the module's class, at the service."""
    of = request.module.Notebook
    with maker(partial(of, service), of.end) as notebook:
        yield notebook


@pytest.fixture
def child() -> Iterator[Forks]:
    """Fork a Child that ends with the test."""
    with maker(Child, Child.end) as child:
        yield child


@pytest.fixture
def open_to_all(settings: Settings, broker_pid: int) -> None:
    """Other users may connect to the broker."""
    os.chmod(Path(settings.socket).parent, 0o711)
    os.chmod(settings.socket, 0o666)
