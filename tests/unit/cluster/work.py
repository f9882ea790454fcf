"""Makes jobs, and reads the files of their generations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.launch.generation import Word
from jupyter_gpushare.jobs import submission

HERE = Path(__file__).parent
JOB = HERE / "job.py"
TRAINING = HERE / "training"
LAUNCHER = Path(generation.__file__).parent / "launcher.py"

Makes = Callable[..., Path]
Launches = Callable[..., "subprocess.Popen[bytes]"]


def made(directory: Path, *command: object, ranks: str = "node") -> Path:
    """Make the directory of a job. A command with only numbers counts iterations."""
    words = [str(word) for word in command]
    if words[0].isdigit():
        words = [sys.executable, str(JOB), *words]
    directory.mkdir(parents=True)
    told = {"command": words, "ranks": ranks, "environment": submission.passed()}
    generation.write(directory / "job.json", told)
    return directory


def opened(job: Path, number: int = 1, resume: str = "", saves: bool = False, **where: int) -> Path:
    return generation.open_generation(job, number, Word(resume, where or {"n0": 1}, 0.05, saves))


def iterations(directories: Sequence[Path]) -> list[int]:
    """Return the iterations that the leaders of these generations computed, in the order of the
    generations."""
    files = [directory / "ran" for directory in directories]
    return [int(line) for file in files if file.exists() for line in file.read_text().split()]


def generations(job: Path) -> list[Path]:
    there = (path for path in job.glob("g*") if path.is_dir())
    return sorted(there, key=lambda path: int(path.name[1:].removesuffix(".closed")))


def run_tests(surroundings: Sequence[object], *words: object, **environment: str) -> None:
    """Run tests in a process that this command starts. Raises AssertionError."""
    root = HERE.parents[2]
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", root)
    command = [str(word) for word in (*surroundings, sys.executable, *tests, *words)]
    made = os.environ | environment
    done = subprocess.run(command, env=made, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def alone(place: Path, program: str, *given: object) -> Any:
    """Return the result of a training outside of a job."""
    out = place / "alone.json"
    words = [sys.executable, TRAINING / program, out, "0", *given]
    subprocess.run([str(word) for word in words], check=True, cwd=place)
    return json.loads(out.read_text())
