"""The examples for new users work as described: the notebook of `make cluster`, on a real Slurm,
and the tutorial of the first job."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from ports import free_ports
from slurm import missing

from jupyter_gpushare.settings import Settings, load

from ....polling import until
from ..program import end

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples" / "cluster"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a Jupyter server in front of the cluster."""
    if reason := missing():
        pytest.skip(reason)
    home = tmp_path / "cluster"
    (port,) = free_ports(1)
    command = [sys.executable, EXAMPLE / "lab.py", "--port", str(port), "--home", home]
    process = subprocess.Popen(command)
    until(lambda: (home / "notebooks" / "gives_way.ipynb").exists())
    until(lambda: listens(port))
    (server,) = psutil.Process(process.pid).children()
    yield server.environ()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.thorough
def test_its_notebook_shows_a_job_that_gives_way_and_comes_back(lab: dict[str, str]) -> None:
    notebook = nbformat.read(EXAMPLE / "gives_way.ipynb", 4)
    NotebookClient(notebook, timeout=120).execute(env=lab)
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    ]
    assert printed == ["6\n", "True 1\n"]


def test_it_is_committed_without_its_results() -> None:
    cells = json.loads((EXAMPLE / "gives_way.ipynb").read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs")]


# --- the tutorial ---------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "tutorial" / "first-job.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of a user with the commands of this environment."""
    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_GPUSHARE_CLUSTER_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("JUPYTER_GPUSHARE_IDLE_EXIT_SECONDS", "60")
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    end(load(socket=settings.socket))


def test_commands_of_the_tutorial_run_in_order_and_end_as_it_says(home: Path) -> None:
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
