"""Processes as ranks of a job, one generation after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.launch import generation

from ..work import opened

COUNT = 6 * 12  # iterations of `train.py`
InJob = Callable[..., Path]


def environment(job: Path, number: int, resume: str = "") -> dict[str, str]:
    return {
        "GPUSHARE_JOB": str(job),
        "GPUSHARE_GENERATION": str(number),
        "GPUSHARE_YIELD": str(generation.path_of(job, number) / "yield.n0"),
        "GPUSHARE_RESUME": resume and str(job / resume),
    }


def go_on(in_job: InJob) -> str:
    """Make this process a rank of the next generation; return the checkpoint of the first one."""
    job = in_job()
    newest = generation.newest(generation.close_generation(job, 1))
    opened(job, 2, newest)
    in_job(2, newest)
    return newest


class Stopped(Exception):
    """The process is killed here."""


def check_that_it_goes_on(in_job: InJob, run: Callable[..., object], *stop: object) -> None:
    """Check that a training has the same result when it is stopped and resumed as without a
    stop."""
    expected = run()
    in_job()
    with pytest.raises((SystemExit, Stopped)):
        run(*stop)
    go_on(in_job)
    assert run() == expected
