"""``jupyter gpushare status``: print one Snapshot."""

from __future__ import annotations

import argparse

from .argument_types import add_json
from .connection import connect
from .output import drawn, show, show_json

HELP = "show devices, lanes and notebooks"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        snapshot = client.look()
    if arguments.json:
        show_json(snapshot)
    else:
        show(drawn(snapshot))
    return 0
