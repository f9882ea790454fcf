"""A benchmark that misses a promise fails, and `make bench` with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..violations import ROOT, expect_none, named

BENCHMARKS = ROOT / "benchmarks"
ENDS = "sys.exit(main())"
PUBLISHING = [
    file for file in sorted(BENCHMARKS.rglob("*.py")) if "import Figure, " in file.read_text()
]
PROGRAM = """
import sys
from pathlib import Path
import measure
measure.RESULTS = Path({results!r})
figures = [measure.Figure("seconds", {value}, "s", target=1.0), measure.Figure("bytes", 5)]
sys.exit(measure.publish("one", figures))
"""


def published(value: float, folder: Path) -> tuple[int, bool]:
    """Return the exit status, and whether the promise is recorded as met."""
    results = folder / "bench.json"
    program = PROGRAM.format(results=str(results), value=value)
    status = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, check=False).returncode
    return status, json.loads(results.read_text())["promises"]["one"]["seconds"]["met"]


def test_a_missed_promise_is_the_exit_status(tmp_path: Path) -> None:
    assert published(2.0, tmp_path) == (1, False)
    assert published(1.0, tmp_path) == (0, True)


def test_a_benchmark_ends_with_the_status_of_its_promises() -> None:
    lines = {named(file): file.read_text().splitlines() for file in PUBLISHING}
    expect_none(f"{file}: ends otherwise" for file in lines if lines[file][-1].strip() != ENDS)
    expect_none(
        f"{file}:{number}: the status is not returned"
        for file in lines
        for number, line in enumerate(lines[file], 1)
        if line.strip().startswith("publish(")
    )


@pytest.mark.parametrize("name", ["six_jobs", "shared_gpu"])
def test_a_benchmark_without_its_slurm_fails(name: str) -> None:
    words = [sys.executable, BENCHMARKS, f"cluster.{name}"]
    done = subprocess.run(words, env={**os.environ, "PATH": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, f"{name} cannot be measured")
