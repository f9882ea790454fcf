"""Fixtures of the rows of the fault matrix, and the file of their outcomes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.settings import Settings, as_environment

from . import privileges
from .jobs import on_slurm, small_disk  # noqa: F401
from .matrix import LEASE_SECONDS, Matrix
from .rows.clocks import clock, late_nursery  # noqa: F401  fixtures of rows
from .rows.co_lanes import room, room_of_three  # noqa: F401
from .rows.gpus import gpu, trainings  # noqa: F401
from .rows.notebooks import kernels, server  # noqa: F401
from .rows.rulebooks import rules  # noqa: F401
from .scene import Alone, Nursery, Scene

BUILD = Path(__file__).parents[3] / "build"
MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reliability", help="run all rows, and write what came out to this file")


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    return pytestconfig.stash.setdefault(MATRIX, Matrix())


def pytest_terminal_summary(config: pytest.Config) -> None:
    if file := config.getoption("reliability", None):
        page = Path(file)
        page.write_text(config.stash.get(MATRIX, Matrix()).document() + written_by_hand(page))


def written_by_hand(page: Path) -> str:
    """Return the part of the page after the table: all from the first heading of a section on."""
    _, *section = page.read_text().partition("\n## ") if page.exists() else ("",)
    return "".join(section)


@pytest.fixture(scope="session")
def alone(nursery: Nursery) -> Iterator[Alone]:
    alone = Alone(nursery)
    yield alone
    alone.close()


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with short turns and leases. Memory is paged out to a disk, since /tmp may be in
    memory."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as pages:
        given = msgspec.structs.replace(
            settings, quantum_seconds=0.02, lease_seconds=LEASE_SECONDS, page_directory=pages
        )
        for name, value in as_environment(given).items():
            monkeypatch.setenv(name, value)
        yield given


@pytest.fixture
def scene(settings: Settings, nursery: Nursery, alone: Alone) -> Iterator[Scene]:
    with privileges.given_up():
        scene = Scene(settings, nursery, alone)
        yield scene
        scene.close()
