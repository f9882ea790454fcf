"""What breaks in a real Slurm: each test has one of its own, and kills parts of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Slurm, missing

from ....polling import until
from ..conftest import Sites
from ..launch.test_launcher import lives
from ..site import Site

pytestmark = pytest.mark.thorough


@pytest.fixture
def slurm_daemons(tmp_path: Path) -> Iterator[Slurm]:
    if reason := missing():
        pytest.skip(reason)
    (folder := tmp_path / "slurm").mkdir()
    slurm = Slurm(folder, {"n0": 2, "n1": 2})
    yield slurm
    slurm.end()


def are_there(site: Site, id: str, count: int) -> bool:
    """No iteration is missing; after a loss those since the last checkpoint are computed again."""
    return {*site.computed(id)} >= {*range(1, count + 1)}


def kill(slurm: Slurm, daemon: str) -> None:
    os.kill(pid := slurm.pid(daemon), signal.SIGKILL)
    until(lambda: not lives(pid))


def test_a_daemon_of_a_node_that_comes_back_in_time_changes_nothing(
    make_site: Sites, slurm: Slurm
) -> None:
    site = make_site()
    site.submit("a", 250, 0.02)
    site.until_state(a="running")
    (node,) = site.job("a").place
    kill(slurm, node)
    for _ in range(3):
        site.service.step()
        assert site.state("a") == "running"
    slurm.run("slurmd", "-N", node)
    site.until_state(a="done")
    assert site.is_whole("a", 250)
    assert (site.job("a").generation, site.job("a").losses) == (1, 0)


def test_a_job_goes_on_elsewhere_where_its_node_is_lost(make_site: Sites, slurm: Slurm) -> None:
    """The daemon of the node is gone for good, and the processes of the job are not."""
    site = make_site()
    site.begin("a", 6000, 0.02)
    (lost,) = site.job("a").place
    kill(slurm, lost)
    site.until(lambda: site.job("a").generation == 2 and site.computes("a"))
    assert lost not in site.job("a").place
    site.hurry("a")
    site.until_state(a="done")
    assert are_there(site, "a", 6000)
    assert site.job("a").losses == 0  # it has saved since


def test_a_job_outlives_the_time_limit_of_its_site(make_site: Sites) -> None:
    """Slurm asks a minute before the limit, which is a minute."""
    site = make_site("--time=1")
    site.submit("a", 750, 0.1)
    for number in range(1, 4):
        site.until(lambda number=number: site.job("a").generation == number and site.computes("a"))  # type: ignore[misc]
    site.finish(a=750)
    assert site.job("a").losses == 0


def test_a_controller_that_has_forgotten_a_job_loses_none_of_its_iterations(
    make_site: Sites, slurm: Slurm, tmp_path: Path
) -> None:
    """It was killed before it had the job on disk, and gives the job's number out again."""
    site = make_site()
    site.begin("a", 400, 0.02)
    kill(slurm, "slurmctld")
    for path in (tmp_path / "slurm" / "state").glob("job_state*"):
        path.unlink()
    shutil.rmtree(tmp_path / "slurm" / "state" / "hash.0", ignore_errors=True)
    slurm.start_controller()
    site.until(lambda: site.job("a").generation > 1 or site.state("a") == "done")
    for name in ("n0", "n1"):  # what an administrator does where Slurm has drained it
        slurm.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
    site.until_state(a="done")
    assert are_there(site, "a", 400)
