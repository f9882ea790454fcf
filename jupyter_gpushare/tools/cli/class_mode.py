"""``jupyter gpushare class``: start or end class mode."""

from __future__ import annotations

import argparse

from ...format import moment
from ...wire.messages import ClassMode
from .argument_types import seconds
from .connection import connect

HELP = "reserve the device for a class of a group, or end that"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("switch", choices=["on", "off"], help="begin or end the class")
    command.add_argument("group", metavar="GROUP", help="a group of the rulebook")
    command.add_argument("--device", metavar="NAME", help="one device (default: all)")
    command.add_argument(
        "--for",
        dest="seconds",
        type=seconds,
        metavar="S",
        help="seconds until the class ends by itself (default: until it is ended)",
    )


def run(arguments: argparse.Namespace) -> int:
    is_on = arguments.switch == "on"
    wish = ClassMode(arguments.group, is_on, arguments.device, arguments.seconds)
    with connect(arguments) as client:
        client.ask(wish)
        classes = client.look().classes
    for one in classes:
        until = "until it is ended" if one.ends is None else f"until {moment(one.ends)}"
        print(f"A class of {one.group} has {one.device} {until}.")
    if not classes:
        print("No class is on.")
    return 0
