"""The rehearsal of benchmarks/gpu.sh, so that it works as soon as there is a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which a rehearsal puts its builds; the next one finds it there."""
    return tmp_path_factory.mktemp("gpu")


def rehearse(home: Path, *parts: str, **environment: str) -> tuple[int, str, Any]:
    """Return its exit status, all that it printed, and the results that it wrote."""
    ran = subprocess.run(
        [SCRIPT, "--rehearse", "--packages", home, *parts],
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "GPUSHARE_GPU_HOME": str(home),
            **environment,
        },
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


def living_parts(home: Path) -> list[bytes]:
    """Return command lines of the parts, and of the trainings, of one rehearsal."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended just now
            is_ours = os.fsencode(home) in (process / "environ").read_bytes()
            line = (process / "cmdline").read_bytes()
            if is_ours and b"gpu." in line:
                lines.append(line)
    return lines


@pytest.mark.thorough
def test_an_end_from_outside_ends_the_part_that_runs_and_keeps_its_results(
    home: Path,
) -> None:
    process = subprocess.Popen(
        [SCRIPT, "--rehearse", "changeover"],
        env={**os.environ, "PYTHON": sys.executable, "GPUSHARE_GPU_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "machine: done" not in process.stdout.readline():
        pass
    assert living_parts(home)
    process.terminate()
    process.communicate()
    assert process.returncode != 0
    while living_parts(home):  # the system takes its time
        pass
    parts = json.loads((home / "rehearsal.json").read_text())["parts"]
    assert parts["machine"]["state"] == "done"


def test_a_part_that_is_unknown_is_refused_in_one_sentence() -> None:
    ran = subprocess.run(
        [SCRIPT, "everything"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert ran.stderr.startswith("gpu.sh: there is no part everything; the parts are ")


def test_main_memory_is_taken_for_no_card() -> None:
    ran = subprocess.run(
        [SCRIPT, "machine"],
        env={**os.environ, "PYTHON": sys.executable, "FAKE_CUDA_BYTES": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert ran.stderr.startswith("gpu.sh: this GPU is main memory and has no figures")


def test_each_package_that_is_brought_along_has_one_version() -> None:
    lines = (ROOT / "benchmarks" / "gpu" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line for line in wanted)
