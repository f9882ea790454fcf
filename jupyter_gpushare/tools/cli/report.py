"""``jupyter gpushare report``: print or export the usage accounts."""

from __future__ import annotations

import argparse
from typing import get_args

from ...jobs.connection import ask
from ...wire.jobs import UseBy, UseRow
from ...wire.messages import By
from .argument_types import add_json
from .connection import connect, settings_of
from .output import show, show_json, tell

HELP = "show the use of the devices by user, group or notebook, as far as you may see it"
DAY = "a day as 2026-11-01, or a time as 2026-11-01T14:00"


def add_arguments(command: argparse.ArgumentParser) -> None:
    first, last = f"{DAY} (default: the 1st of this month)", f"{DAY}; inclusive (default: now)"
    command.add_argument("--from", dest="first", default="", metavar="DAY", help=first)
    command.add_argument("--to", dest="last", default="", metavar="DAY", help=last)
    choices = dict.fromkeys((*get_args(By), *get_args(UseBy)))
    command.add_argument("--by", choices=[*choices], default="user", help="group rows by")
    jobs = "the GPU time of jobs, by user, job or day, instead of that of notebooks"
    command.add_argument("--jobs", action="store_true", help=jobs)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV in seconds and bytes")
    add_json(form)


def run(arguments: argparse.Namespace) -> int:
    from .. import usage_report

    if arguments.jobs:
        return of_jobs(arguments)
    asked = usage_report.question(arguments.first, arguments.last, arguments.by)
    with connect(arguments) as client:
        answer = usage_report.ask(client, asked)
    if answer.note:
        tell(answer.note)
    if arguments.json:
        show_json(answer.rows)
    elif arguments.csv:
        print(usage_report.as_csv(asked, answer.rows), end="")
    else:
        show(usage_report.picture(asked, answer.rows))
    return 0


def of_jobs(arguments: argparse.Namespace) -> int:
    from .. import usage_report

    asked = usage_report.question_of_jobs(arguments.first, arguments.last, arguments.by)
    answer = ask(
        settings_of(arguments), lambda cluster: cluster.use(asked.start, asked.end, asked.by)
    )
    if arguments.json:
        show_json(answer.rows)
    elif arguments.csv:
        print(usage_report.as_csv(asked, answer.rows, UseRow), end="")
    else:
        show(usage_report.picture_of_jobs(asked, answer.rows))
    return 0
