"""Fixtures that make this process a rank of a job."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.client.checkpoints import checkpoint as module
from jupyter_gpushare.client.torch.checkpoints import agreement

from ..conftest import disk_of_a_megabyte
from ..work import opened
from .resuming import InJob, environment


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.mkdir()
    opened(path)
    return path


@pytest.fixture
def in_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> InJob:
    """Make this process a rank of a generation of the job."""

    def in_job(number: int = 1, resume: str = "") -> Path:
        for name, value in environment(job, number, resume).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(module, "_current", None)
        monkeypatch.setattr(agreement, "AGREE_SECONDS", 0.0)  # after each iteration
        return job

    return in_job


@pytest.fixture
def tmpfs(job: Path) -> Iterator[Path]:
    """The directory of a generation in a file system of a megabyte."""
    with disk_of_a_megabyte(job / "g1"):
        opened(job)
        yield job / "g1"


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_current", None)
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for temporary files. A worker that ends at once leaves an empty folder there: the
    thread that sends its first batch makes the folder after multiprocessing has removed such
    folders."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
