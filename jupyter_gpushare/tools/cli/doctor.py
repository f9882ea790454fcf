"""``jupyter gpushare doctor``: print the checks of the installation."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...settings import Settings
from ..doctor import Check
from .argument_types import add_json
from .connection import settings_of
from .output import show, show_json, tell

HELP = "check the installation, and say how to repair it"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bundle",
        metavar="FILE",
        help="also write a ZIP file for a bug report: the checks, the settings, what the"
        " broker shows and the end of its log, without names",
    )
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from .. import doctor

    settings = settings_of(arguments)
    found = list(doctor.examine(settings))
    if arguments.json:
        show_json(found)
    else:
        show(doctor.picture(found))
    if arguments.bundle:
        _write_bundle(arguments.bundle, found, settings)
    return int(any(check.state == "problem" for check in found))


def _write_bundle(path: str, found: list[Check], settings: Settings) -> None:
    from .. import bundle

    parts = bundle.write(path, found, settings)
    tell(f"{Path(path).resolve()} has {', '.join(parts)}: look at it before you send it")
