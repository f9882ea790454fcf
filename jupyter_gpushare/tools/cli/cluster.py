"""``jupyter gpushare cluster``: the service of jobs, in the foreground."""

from __future__ import annotations

import argparse

from ...settings import ENGINES, descriptions
from .connection import settings_of

HELP = "run the service of jobs in the foreground; the first submit starts one by itself"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine",
        dest="cluster_engine",
        metavar="NAME",
        help=f"{', '.join(ENGINES)}: {descriptions()['cluster_engine']}",
    )
    command.add_argument(
        "--nodes",
        dest="cluster_nodes",
        metavar="NODES",
        help="nodes for jobs and their GPUs, like here=4",
    )


def run(arguments: argparse.Namespace) -> int:
    from ...cluster.__main__ import main

    return main(settings_of(arguments))
