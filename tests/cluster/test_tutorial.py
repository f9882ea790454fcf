"""The tutorial of the first job does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.settings import Settings, load

from .program import end

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-job.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a user, whose commands are those of this environment."""
    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_GPUSHARE_CLUSTER_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("JUPYTER_GPUSHARE_IDLE_EXIT_SECONDS", "60")
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    end(load(socket=settings.socket))


@pytest.mark.system
def test_its_commands_run_in_order_and_end_as_it_says(home: Path) -> None:
    (program,) = blocks("python")
    (home / "train.py").write_text(program)
    commands = "\n".join(["set -e -o pipefail", *blocks("bash")])
    run = subprocess.run(["bash", "-c", commands], cwd=home, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    out = run.stdout
    assert re.search(r"^long-[0-9a-f]{6}\b", out, re.MULTILINE)
    assert out.count("goes on after iteration 0") == 1
    assert len(re.findall(r"^loss [0-9.]+$", out, re.MULTILINE)) == 1
    assert "node-b" in out
    assert "done" in out
    assert out.rstrip().endswith("96")
