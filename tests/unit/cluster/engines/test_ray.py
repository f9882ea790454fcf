"""The contract of engines on a real Ray. Ray listens on all addresses, so it gets its own
network."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from ..conftest import ON_RAY
from ..work import run_tests

HERE = Path(__file__).parent
TESTS = (HERE / "test_engines.py", HERE / "on_ray.py")
QUICK = "on_each_of_its_nodes or has_computed or asked_to_yield"  # what every change gets


def has_network_of_its_own() -> bool:
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return made.returncode == 0


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
    network = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    place = f"--basetemp={tmp_path / 'tests'}"
    run_tests(network, *TESTS, "-k", chosen, place, **{ON_RAY: "1"})
