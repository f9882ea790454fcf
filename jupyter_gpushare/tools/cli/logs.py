"""``jupyter gpushare logs``: print the output of a job."""

from __future__ import annotations

import argparse

from ...jobs.job import Job
from .connection import settings_of

HELP = "print what a job has printed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB", help="its id, as `jobs` shows it, or the beginning")
    command.add_argument(
        "-f", "--follow", action="store_true", help="continue until the job has ended"
    )


def run(arguments: argparse.Namespace) -> int:
    job = Job(arguments.job, settings_of(arguments))
    if not arguments.follow:
        print(job.log(), end="")
        return 0
    for text in job.follow():
        print(text, end="", flush=True)
    return 0
