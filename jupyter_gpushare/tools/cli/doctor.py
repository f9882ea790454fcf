"""``jupyter gpushare doctor``: print the checks of the installation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...settings import Settings
from ..check import Check
from .argument_types import add_json
from .connection import settings_of
from .output import show_growing, show_json, tell

if TYPE_CHECKING:
    from ...tables import Table

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

    settings = settings_of(arguments)
    found: list[Check] = []
    if arguments.json:
        found += doctor.examine(settings)
        show_json(found)
    else:
        show_growing(_pictures(found, settings))
    if arguments.bundle:
        _write_bundle(arguments.bundle, found, settings)
    return int(any(check.state == "problem" for check in found))


def _pictures(found: list[Check], settings: Settings) -> Iterator[Table]:
    """The table of the checks so far, which are `found`: a slow one must not keep the others."""
    from .. import doctor

    yield doctor.picture(found)
    for check in doctor.examine(settings):
        found.append(check)
        yield doctor.picture(found)


def _write_bundle(path: str, found: list[Check], settings: Settings) -> None:
    from .. import bundle

    parts = bundle.write(path, found, settings)
    tell(f"{Path(path).resolve()} has {', '.join(parts)}: look at it before you send it")
