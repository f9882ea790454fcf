"""``jupyter gpushare submit``: run a script on a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...jobs.job import of_script
from ...jobs.submission import Wanted
from .argument_types import gpus
from .connection import settings_of

HELP = "run a script of Python on GPUs of a cluster, as soon as they are free"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", type=Path, metavar="SCRIPT")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    command.add_argument(
        "--gpus", type=gpus, default=1, metavar="N", help="GPUs that it needs, or 0.25 of one"
    )
    command.add_argument(
        "--nodes", type=int, default=0, metavar="N", help="nodes that they are on at most"
    )
    command.add_argument("--name", default="", metavar="NAME", help="a name for people")
    command.add_argument(
        "--resumes",
        action="store_true",
        help="it saves when it is asked to yield, and goes on from there",
    )
    command.add_argument(
        "--restarts", action="store_true", help="it may be run again where it was lost"
    )
    command.add_argument(
        "--rank-for-each-gpu", action="store_true", help="a process for each GPU, not for each node"
    )


def run(arguments: argparse.Namespace) -> int:
    wanted = Wanted(
        arguments.gpus,
        arguments.nodes,
        arguments.name,
        arguments.resumes,
        arguments.restarts,
        arguments.rank_for_each_gpu,
    )
    job = of_script(settings_of(arguments), arguments.script, arguments.arguments, wanted)
    print(job.id)
    return 0
