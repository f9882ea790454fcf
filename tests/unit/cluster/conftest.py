"""Fixtures: jobs, and launchers and services that end with a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from ...makers import maker

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "cluster"))
from ray_cluster import ADDRESS, RayCluster
from slurm import Slurm, missing

from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.errors import EngineUnavailable
from jupyter_gpushare.settings import Settings, load

from ...polling import until
from .program import end
from .site import Site
from .work import LAUNCHER, Launches, Makes, made

__all__ = ["ADDRESS", "Slurm", "missing"]
Sites = Callable[..., Site]
MakesSettings = Callable[..., Settings]
NODES, SHARDS = {"n0": 2, "n1": 2, "n2": 1}, {"n2": 4}


@pytest.fixture
def make_job(tmp_path: Path) -> Makes:
    def make(*command: object, name: str = "a", ranks: str = "node") -> Path:
        return made(tmp_path / "jobs" / name, *command, ranks=ranks)

    return make


@pytest.fixture
def launch() -> Iterator[Launches]:
    """Start launchers, which are killed at the end of the test."""
    launchers: list[subprocess.Popen[bytes]] = []

    def launch(job: Path, node: str = "n0") -> subprocess.Popen[bytes]:
        command = [sys.executable, str(LAUNCHER), str(job), "1", node]
        launchers.append(subprocess.Popen(command, start_new_session=True))
        return launchers[-1]

    yield launch
    of = {launcher.pid for launcher in launchers}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) in of:
                process.kill()
    for launcher in launchers:
        launcher.wait()


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := missing():
        pytest.skip(reason)
    slurm = Slurm(tmp_path_factory.mktemp("slurm"), NODES, SHARDS)
    yield slurm
    slurm.end()


ON_RAY = "GPUSHARE_TESTS_ON_RAY"  # in whose network there is nothing else


@pytest.fixture(scope="session")
def ray() -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # names of its sockets are long
    cluster = RayCluster(folder, {"n0": 2, "n1": 2})
    yield cluster
    cluster.end()
    shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_daemons: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """An empty Slurm with NODES, which the commands of Slurm find."""
    for name, value in slurm_daemons.environment.items():
        monkeypatch.setenv(name, value)
    until(lambda: {*slurm_daemons.states().values()} == {"idle"})
    return slurm_daemons


@pytest.fixture
def make_site(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    """Make sites on a Slurm, with their services in this process."""
    monkeypatch.setenv("GPUSHARE_ADDRESS", "127.0.0.1")

    def make(*options: str, python: str = sys.executable) -> Site:
        return Site(tmp_path, make_engine=lambda cluster: SlurmEngine(cluster, options, python))

    with maker(make, close_without_slurm) as made:
        yield made


@contextlib.contextmanager
def disk_of_a_megabyte(place: Path) -> Iterator[None]:
    """Mount a file system of a megabyte within the block. Skips the test if none can be mounted."""
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", place)
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk, and not everywhere")
    yield
    subprocess.run(["umount", "--lazy", place], check=True)


def close_without_slurm(site: Site) -> None:
    """Close a site whose Slurm may be gone."""
    with contextlib.suppress(EngineUnavailable):
        site.close()


@pytest.fixture
def trains(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site for trainings, whose ranks are in a network of their own."""
    found = {"GPUSHARE_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def cluster_settings(socket_directory: Path, tmp_path: Path) -> Iterator[MakesSettings]:
    """Make the settings of a service with its own process, which ends with the test."""
    there = {"socket": str(socket_directory / "b.sock")}
    there["cluster_directory"] = str(tmp_path / "state")
    with maker(partial(load, {}, cluster_look_seconds=0.05, **there), end) as make:
        yield make
