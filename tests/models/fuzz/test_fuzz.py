"""No input from outside breaks its reader, neither random input nor earlier findings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .targets import CORPUS, TARGETS

ROOT = Path(__file__).parents[3]
FEW = 200  # inputs, where no time is given
FOUND = re.compile(r"Test unit written to (\S+)")
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris, which is for Linux alone"
)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_breaks_nothing(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        try:
            TARGETS[name].fuzz(file.read_bytes())
        except Exception as error:
            raise AssertionError(f"{file.name} does") from error


@pytest.mark.system
@needs_atheris
@pytest.mark.parametrize("name", TARGETS)
def test_a_fuzzer_finds_nothing(name: str, seconds: float, tmp_path: Path) -> None:
    """The fuzzer runs in its own process, which libFuzzer ends."""
    (tmp_path / "found").mkdir()
    most = f"-max_total_time={max(1, int(seconds))}" if seconds else f"-runs={FEW}"
    options = [most, "-seed=1", f"-artifact_prefix={tmp_path}/"]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.models.fuzz",
            name,
            *options,
            tmp_path / "found",
            CORPUS / name,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(ran.stdout.splitlines()[-1])
    assert ran.returncode == 0, told(ran.stdout)


def told(output: str) -> str:
    """Return the last output of the fuzzer, and the input that caused it."""
    found = FOUND.search(output)
    content = Path(found[1]).read_bytes() if found else b""
    lines = content.decode(errors="backslashreplace")
    return f"{output[-4000:]}\n\nthe input, {len(content)} bytes {content[:200]!r}:\n{lines[:4000]}"
