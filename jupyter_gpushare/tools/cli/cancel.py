"""``jupyter gpushare cancel``: end a job."""

from __future__ import annotations

import argparse

from ...jobs.connection import ask
from .. import jobs_table
from .connection import settings_of

HELP = "end a job, or take it out of the queue"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="JOB", help="its id, as `jobs` shows it, or the beginning")


def run(arguments: argparse.Namespace) -> int:
    view = ask(settings_of(arguments), lambda cluster: cluster.cancel(arguments.job))
    print(jobs_table.cancelled(view))
    return 0
