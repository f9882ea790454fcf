"""The contract of engines on a real Ray, which has a network of its own: it listens on all
addresses."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ON_RAY

HERE = Path(__file__).parent
TESTS = (HERE / "test_engines.py", HERE / "on_ray.py")
QUICK = "on_each_of_its_nodes or has_computed or asked_to_yield"  # what every change gets


def has_network_of_its_own() -> bool:
    return (
        subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.system
@pytest.mark.parametrize(
    "chosen",
    [pytest.param(QUICK, id="quick"), pytest.param("", id="all", marks=pytest.mark.thorough)],
)
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_network_of_its_own(), reason="a network of its own needs root")
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (on Debian: iproute2)")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_jobs_run_on_ray(chosen: str, tmp_path: Path) -> None:
    root = HERE.parents[3]
    network = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", root, *TESTS)
    done = subprocess.run(
        [*network, sys.executable, *tests, "-k", chosen, f"--basetemp={tmp_path / 'tests'}"],
        env={**os.environ, ON_RAY: "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout + done.stderr
