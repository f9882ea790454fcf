"""``jupyter gpushare broker``: run a broker in the foreground, or end the one that runs."""

from __future__ import annotations

import argparse

from ...settings import Settings, descriptions
from ...wire.messages import Shutdown
from .connection import connect, settings_of

HELP = "run a broker in the foreground, or end one"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Make an option of every setting. Its text is checked as in the environment."""
    command.add_argument("--stop", action="store_true", help="end the broker that runs")
    for name, sentence in descriptions().items():
        if name != "socket":
            command.add_argument(
                f"--{name.replace('_', '-')}",
                metavar="VALUE",
                help=(sentence + _default(getattr(Settings(), name))).replace("%", "%%"),
            )


def _default(value: object) -> str:
    """Return the default for the help; the sentence of the setting explains an empty text."""
    return "" if value == "" else f" (default: {value})"


def run(arguments: argparse.Namespace) -> int:
    if arguments.stop:
        return _stop(arguments)
    from ...broker.__main__ import main as run_broker

    return run_broker(settings_of(arguments))


def _stop(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        client.ask(Shutdown())
        print(f"The broker {client.welcome.pid} ends.")
    return 0
