"""The script for a machine with a GPU runs on the fake GPU, so that an hour with a real one only
adds figures. `make rehearse-gpu` runs all parts of the script; these tests run those that only a
GPU has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu.sh"
PARTS = ("driver_facts", "glue", "paging")


def test_parts_that_only_a_gpu_has_are_done(tmp_path: Path) -> None:
    printed = subprocess.run(
        [SCRIPT, "--rehearse", "--packages", tmp_path, *PARTS],
        env={**os.environ, "PYTHON": sys.executable, "GPUSHARE_GPU_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout
    results = json.loads((tmp_path / "rehearsal.json").read_text())
    assert {found["state"] for found in results["parts"].values()} == {"done"}, printed
    assert results["machine"]["is_rehearsal"] is True
    assert results["machine"]["why_no_lane"] == ""
    for part in PARTS:
        facts = results["parts"][part]["facts"]
        assert not [name for name, said in facts.items() if said["holds"] is False], printed
    assert results["parts"]["glue"]["facts"]["new_segments_are_ours"]["holds"]
    assert results["parts"]["paging"]["facts"]["memory_goes_out_and_comes_back"]["holds"]
