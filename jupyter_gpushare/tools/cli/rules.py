"""``jupyter gpushare rules``: `check` needs no broker; `show` asks the one that runs."""

from __future__ import annotations

import argparse

from ...errors import InvalidValue
from .connection import connect
from .output import show

HELP = "check a rulebook, or show the one in force"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="check a file; exit status 1 if it is wrong")
    check.add_argument("file", metavar="FILE")
    check.set_defaults(act=_check)
    show_ = actions.add_parser("show", help="show groups, reservations and classes")
    show_.set_defaults(act=_show)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.act(arguments))


def _check(arguments: argparse.Namespace) -> int:
    from ...broker.admin import rulebook_file

    found = rulebook_file.load(arguments.file)
    counts = (
        (len(found.groups), "group"),
        (len(found.users), "user"),
        (len(found.reservations), "reservation"),
    )
    named = ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)
    print(f"{arguments.file} is valid: {named}.")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from ... import tables
    from .. import overview

    with connect(arguments) as client:
        snapshot = client.look()
    for table in filter(tables.is_filled, overview.rules(snapshot)):
        show(table)
    if snapshot.rulebook_error:
        raise InvalidValue(snapshot.rulebook_error)
    if not snapshot.groups:
        print("There are no groups: the setting rulebook names no file, or one without groups.")
    return 0
