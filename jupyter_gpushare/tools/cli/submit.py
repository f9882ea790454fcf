"""``jupyter gpushare submit``: run a script on a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...jobs.job import of_script
from ...jobs.submission import Wanted
from .argument_types import gpus
from .connection import settings_of

HELP = "run a script of Python on GPUs of a cluster, as soon as they are free"
END = "--"  # ends the arguments of the script, which may contain it, too


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", type=Path, metavar="SCRIPT", help="a script of Python")
    command.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments of the script; behind the last `--` those of sbatch, where jobs run on"
        " Slurm",
    )
    command.add_argument(
        "--gpus",
        type=gpus,
        default=1,
        metavar="N",
        help="GPUs that the job needs, or a part of one, such as 0.25",
    )
    command.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="most nodes that these GPUs are on (default: any number)",
    )
    command.add_argument(
        "--name",
        default="",
        metavar="NAME",
        help="the name of the job (default: that of the script)",
    )
    command.add_argument(
        "--resumes",
        action="store_true",
        help="the script saves when it is asked to yield, and resumes from there",
    )
    command.add_argument(
        "--restarts", action="store_true", help="run the script again if it was lost"
    )
    command.add_argument(
        "--rank-for-each-gpu",
        action="store_true",
        help="start a process for each GPU, not for each node",
    )


def run(arguments: argparse.Namespace) -> int:
    wanted = Wanted(
        arguments.gpus,
        arguments.nodes,
        arguments.name,
        arguments.resumes,
        arguments.restarts,
        arguments.rank_for_each_gpu,
        arguments.options,
    )
    given = all_of_script(arguments.words, arguments.arguments)
    job = of_script(settings_of(arguments), arguments.script, given, wanted)
    print(job.id)
    return 0


def divided(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words of a command line, and the words behind its last `--`, which are for sbatch.
    The parser would take the first `--` instead of the last one."""
    if words[:1] != ["submit"] or END not in words:
        return words, ()
    end = len(words) - 1 - words[::-1].index(END)
    return words[:end], words[end + 1 :]


def all_of_script(words: Sequence[str], found: Sequence[str]) -> Sequence[str]:
    """Return the arguments of the script, which are the last of these words. The parser drops a
    `--` that is the first argument."""
    return [END, *found] if words[-1 - len(found)] == END else found
