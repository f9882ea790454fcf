"""``jupyter gpushare jobs``: jobs of the cluster, and their states."""

from __future__ import annotations

import argparse

from ...jobs.connection import ask
from .. import jobs_table
from .argument_types import add_json
from .connection import settings_of
from .output import show, show_json, tell

HELP = "show jobs and what they wait for"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all", action="store_true", help="show finished jobs, too")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    view = ask(settings_of(arguments), lambda cluster: cluster.look(arguments.all))
    if arguments.json:
        show_json(view.jobs)
        return 0
    if view.trouble:
        tell(view.trouble)
    if view.jobs:
        show(jobs_table.jobs(view.jobs))
    else:
        print("no jobs" if arguments.all else "no jobs wait or run")
    return 0
