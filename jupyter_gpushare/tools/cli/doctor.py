"""``jupyter gpushare doctor``: print the checks of the installation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..check import Check
from .argument_types import add_json
from .connection import settings_of
from .output import show_growing, show_json, tell

if TYPE_CHECKING:
    from ...tables import Table
    from ..doctor import Installation

HELP = "check the installation, and say how to repair it"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bundle",
        metavar="FILE",
        help="also write a ZIP file for a bug report: the checks, the settings, what the"
        " broker shows and the end of its log, without names, paths and code",
    )
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from .. import doctor

    here = doctor.Installation(settings_of(arguments))
    found: list[Check] = []
    if arguments.json:
        found += doctor.examine(here)
        show_json(found)
    else:
        show_growing(_pictures(found, here))
    if arguments.bundle:
        _write_bundle(arguments.bundle, found, here)
    return int(any(check.state == "problem" for check in found))


def _pictures(found: list[Check], here: Installation) -> Iterator[Table]:
    """Yield the table of the checks so far, so that a slow check does not delay the others. All
    checks come into `found`."""
    from .. import doctor

    yield doctor.picture(found)
    for check in doctor.examine(here):
        found.append(check)
        yield doctor.picture(found)


def _write_bundle(path: str, found: list[Check], here: Installation) -> None:
    from .. import bundle

    parts = bundle.write(path, found, here)
    tell(f"{Path(path).resolve()} has {', '.join(parts)}: look at it before you send it")
