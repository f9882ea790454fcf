"""The service of jobs on a real Ray. `test_ray.py` runs this."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import ADDRESS, RayCluster

from jupyter_gpushare.cluster.engines.ray import RayEngine

from ..site import Site


@pytest.fixture
def site(ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("GPUSHARE_ADDRESS", "127.0.0.1")
    site = Site(tmp_path, make_engine=lambda cluster: RayEngine(cluster, ADDRESS))
    site.until(lambda: len(site.service.nodes) == 2)
    yield site
    site.close()


def test_a_job_that_has_computed_yields_to_one_that_has_not(site: Site) -> None:
    site.check_that_one_yields()


def test_a_job_leaves_a_node_that_is_lost(site: Site, ray: RayCluster) -> None:
    """This is the last test, since the node does not come back. Ray may report the loss of a job
    before that of its node, so a generation may find no room there."""
    site.begin("a", 900, 0.02)
    (lost,) = site.job("a").place
    os.kill(ray.pid_of_node(lost), signal.SIGKILL)
    site.until(lambda: site.job("a").generation > 1 and site.computes("a"))
    assert lost not in site.job("a").place
    site.until_state(a="done")
    assert {*site.computed("a")} == {*range(1, 901)}
