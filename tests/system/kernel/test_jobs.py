"""Cells that become jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare.errors import JobFailed
from jupyter_gpushare.jobs.job import Job
from jupyter_gpushare.settings import Settings

from ...polling import until
from ...unit.cluster.program import end
from .conftest import Start, load

BEFORE = """
import math
import time
rate, steps = 0.25, [1, 2, 3]
def step(number):
    return math.sqrt(number) * rate
"""
CELL = """%%gpushare submit --gpus 2 --name 'My net'
total, rate = 0.0, 0.5
for number in steps:
    total += step(number)
    time.sleep(0.01)
print("total", total)
"""


@pytest.fixture
def jobs(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    given = replace(settings, cluster_directory=str(tmp_path / "state"), cluster_nodes="here=2")
    yield given
    end(given)


@pytest.fixture
def notebook(jobs: Settings, start: Start) -> Any:
    """A kernel, which ends before the service: the picture of a job would start another one."""
    names = ("cluster_directory", "cluster_nodes")
    own = {f"JUPYTER_GPUSHARE_{name.upper()}": getattr(jobs, name) for name in names}
    return load(start(**own))


def test_a_cell_becomes_a_job_with_what_it_reads(notebook: Any, jobs: Settings) -> None:
    notebook.run(BEFORE)
    cell = notebook.run(CELL)
    (shown,) = cell.shown()
    assert shown.startswith("<Job my-net-")
    job = Job(shown.split()[1].rstrip(":"), jobs)
    assert job.wait(60).gpus == 2
    assert "total 2.073" in job.log()
    assert "total 2.073" in notebook.run(f"%gpushare logs {job.id}").stdout
    assert "has already ended: " in notebook.run(f"%gpushare cancel {job.id}").text
    assert "total" not in notebook.run("print(dir())").stdout  # it has not run here
    assert job.id in notebook.run("%gpushare jobs").text
    assert "done" in notebook.run("_").text or "done" in notebook.run("%gpushare jobs").text


@pytest.mark.system
def test_a_notebook_cancels_a_job_by_the_beginning_of_its_id(notebook: Any, jobs: Settings) -> None:
    cell = notebook.run("%%gpushare submit --name long\nimport time\ntime.sleep(3600)")
    job = Job(cell.shown()[0].split()[1].rstrip(":"), jobs)
    until(lambda: job.state == "running")
    assert f"{job.id} is cancelled" in notebook.run("%gpushare cancel long").text
    with pytest.raises(JobFailed, match=f"{job.id}: cancelled"):
        job.wait(60)


MISTAKES = {
    "%gpushare submit": "`%%gpushare submit` is the first line of a cell",
    "%%gpushare submit --gpus 9\npass": "a job of 9 GPUs never fits: the nodes have at most",
    "%%gpushare submit --gpus 0\npass": "--gpus 0 is wrong; it takes a whole number from 1",
    "%%gpushare submit --gpu 1\npass": "has no option --gpu; did you mean --gpus?",
    "%%gpushare submit -- -A lab\npass": "-A is for sbatch, and these jobs do not run on Slurm",
    "%gpushare logs": "`%gpushare logs` wants JOB, to print what the job of this id has",
    "%gpushare cancel nosuch": "there is no job nosuch",
    "%%gpushare submit\na = = 2": "line 1 of the cell is wrong: ",
    "%%gpushare submit\nprint(nosuch)": "the cell reads nosuch, which this notebook does not",
    "%%gpushare submit\n!ls": "magics and shell commands",
    "%%gpushare submit\nprint(lock)": "the variable lock cannot be sent to a job: ",
}


@pytest.mark.system
def test_each_mistake_gets_one_sentence(notebook: Any) -> None:
    notebook.run("import _thread\nlock = _thread.RLock()")
    for code, sentence in MISTAKES.items():
        cell = notebook.run(code)
        assert sentence in cell.stderr
        assert cell.stderr.count("\n") == 1, code


@pytest.mark.system
def test_a_job_is_shown_live_and_its_last_picture_says_how_it_ended(
    notebook: Any, jobs: Settings
) -> None:
    notebook.run("import jupyter_gpushare as gpushare")
    cell = notebook.run(
        "%%gpushare submit --name live\n"
        "import time\n"
        "for number in range(20):\n"
        "    print('line', number, flush=True)\n"
        "    time.sleep(0.1)\n"
        "print('<b>last</b>')"
    )
    (picture,) = cell.shown(mime="text/html")
    assert "live-" in picture
    job = Job(cell.shown()[0].split()[1].rstrip(":"), jobs)
    job.wait(60)
    pictures: list[str] = []

    def is_over() -> bool:
        """Pictures are told by the id of their output, whichever cell runs."""
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "update_display_data":
            pictures.append(message["content"]["data"]["text/html"])
        return bool(pictures) and "done " in pictures[-1]

    while not is_over():
        pass
    assert any("runs here" in one for one in pictures)
    assert "line 18\nline 19\n&lt;b&gt;last&lt;/b&gt;</pre>" in pictures[-1]
    assert re.search(r" at \d\d:\d\d:\d\d<", pictures[-1])
