"""``jupyter gpushare top``: `status`, live. It outlives the broker and shows the next one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import BrokerUnavailable, ConnectionLost
from . import output
from .argument_types import seconds
from .connection import connect

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...wire.snapshot import Snapshot

HELP = "show devices, lanes and notebooks live; Ctrl-C ends it"
RECONNECT_SECONDS = 0.5


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--interval",
        type=seconds,
        default=0.25,
        metavar="S",
        help="minimum seconds between two updates (default: 0.25)",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        if sys.stdout.isatty():
            _show_live(arguments)
        else:
            for view in _views(arguments):
                output.show(_drawn(view))
    except KeyboardInterrupt:
        pass  # this is the usual way to leave it
    return 0


def _show_live(arguments: argparse.Namespace) -> None:
    from rich.live import Live

    # Between two Snapshots only time passes, so the view ages by itself.
    latest: tuple[Snapshot | str, float] = ("", time.monotonic())

    def draw() -> RenderableType:
        view, since = latest
        return _drawn(view, time.monotonic() - since)

    with Live(get_renderable=draw, refresh_per_second=4, screen=True):
        for view in _views(arguments):
            latest = (view, time.monotonic())


def _views(arguments: argparse.Namespace) -> Iterator[Snapshot | str]:
    """Yield Snapshots as they change; while there is no broker, one sentence that says so."""
    said = ""
    while True:
        try:
            with connect(arguments) as client:
                yield from client.watch(arguments.interval)
        except (BrokerUnavailable, ConnectionLost) as error:
            if str(error) != said:
                said = str(error)
                yield f"Looking for a broker: {said}."
        time.sleep(RECONNECT_SECONDS)


def _drawn(view: Snapshot | str, age: float = 0.0) -> RenderableType:
    from .. import overview

    return view if isinstance(view, str) else output.drawn(overview.aged(view, age))
