"""The rehearsal of benchmarks/gpu.sh, so that it works as soon as there is a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which a rehearsal puts its builds; the next one finds it there."""
    return tmp_path_factory.mktemp("gpu")


def rehearse(home: Path, *parts: str, **environment: str) -> tuple[int, str, Any]:
    """Return its exit status, all that it printed, and the results that it wrote."""
    ran = subprocess.run(
        [SCRIPT, "--rehearse", "--packages", home, *parts],
        env={**os.environ, "PYTHON": sys.executable, "GPUSHARE_GPU_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ran.returncode, ran.stdout, json.loads((home / "rehearsal.json").read_text())


@pytest.mark.thorough
def test_each_fact_that_lanes_rest_on_holds_for_the_fake_driver(home: Path) -> None:
    code, printed, results = rehearse(home, "driver_facts", "driver_costs")
    assert code == 0, printed
    facts = results["parts"]["driver_facts"]["facts"]
    unknown = {name: said["note"] for name, said in facts.items() if said["holds"] is None}
    assert set(unknown.values()) <= {"this driver has no cuMemGetInfo"}
    assert not [name for name, said in facts.items() if said["holds"] is False]
    assert len(facts) - len(unknown) > 12
    assert results["parts"]["driver_costs"]["figures"]["map_2_MiB"]["value"] > 0
    assert "  yes process_imports_its_own_export" in printed
    assert results["machine"]["is_rehearsal"] is True


@pytest.mark.thorough
def test_figures_come_from_real_sessions(home: Path) -> None:
    code, printed, results = rehearse(home, "changeover", "paging")
    assert code == 0, printed
    figures = results["parts"]["changeover"]["figures"]
    assert 0 < figures["p50_us"]["value"] <= figures["p99_us"]["value"]
    assert results["parts"]["paging"]["facts"]["memory_goes_out_and_comes_back"]["holds"] is True


@pytest.mark.system
def test_a_part_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    """Nothing can be compiled: results that need no compiler are told, and the reason is kept."""
    code, printed, results = rehearse(tmp_path, "driver_facts", "glue", CXX="false")
    parts = results["parts"]
    assert code == 1
    assert parts["driver_program"]["state"] == "failed with 1"
    assert "'false'" in parts["driver_program"]["words"]
    assert parts["driver_facts"]["state"].startswith("not begun")
    assert parts["machine"]["state"] == parts["glue"]["state"] == "done"
    assert "driver_program: failed with 1" in printed


def test_time_that_is_over_is_reported_and_no_part_begins_without_any(home: Path) -> None:
    code, _, results = rehearse(home, "glue", "--seconds", "0")
    assert code == 1
    states = {found["state"] for found in results["parts"].values()}
    assert states == {"not begun: no time was left"}


@pytest.mark.parametrize(
    ("part", "bytes", "sentence"),
    [
        ("everything", "", "there is no part everything; the parts are "),
        ("machine", "1", "this GPU is main memory and has no figures"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(
    part: str, bytes: str, sentence: str
) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    if bytes:
        environment["FAKE_CUDA_BYTES"] = bytes
    ran = subprocess.run([SCRIPT, part], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0
    assert ran.stderr.startswith(f"gpu.sh: {sentence}")


def test_each_package_that_is_brought_along_has_one_version() -> None:
    lines = (ROOT / "benchmarks" / "gpu" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line for line in wanted)
