"""`make cluster`, as a new user has it: its notebook comes to what it says, on a real Slurm."""

from __future__ import annotations

import json
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
from slurm import missing

from ..polling import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a Jupyter server in front of the cluster."""
    if reason := missing():
        pytest.skip(reason)
    home = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
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
