"""``jupyter gpushare doctor``: print the checks of the installation."""

from __future__ import annotations

import argparse

from .argument_types import add_json
from .connection import settings_of
from .output import show, show_json

HELP = "check the installation, and say how to repair it"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from .. import doctor

    found = list(doctor.examine(settings_of(arguments)))
    if arguments.json:
        show_json(found)
    else:
        show(doctor.picture(found))
    return int(any(check.state == "problem" for check in found))
