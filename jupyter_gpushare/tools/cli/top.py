"""``jupyter gpushare top``: `status`, live. It outlives the broker and shows the next one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

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


class TopScreen(NamedTuple):
    """The screen: the last Snapshot, and above it the reason if it is not the present one."""

    away: str
    snapshot: Snapshot | None


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
    latest = (TopScreen("", None), time.monotonic())

    def draw() -> RenderableType:
        view, since = latest
        return _drawn(view, time.monotonic() - since)

    with Live(get_renderable=draw, refresh_per_second=4, screen=True):
        for view in _views(arguments):
            latest = (view, time.monotonic())


def _views(arguments: argparse.Namespace) -> Iterator[TopScreen]:
    """Yield views as they change. The last Snapshot stays while there is no broker, and until the
    notebooks in it are back with the next one or its recovery has ended."""
    from .. import overview

    last: Snapshot | None = None
    said = ""
    while True:
        try:
            with connect(arguments) as client:
                for snapshot in client.watch(arguments.interval):
                    last, said = overview.during_recovery(last, snapshot), ""
                    yield TopScreen("", last)
        except (BrokerUnavailable, ConnectionLost) as error:
            if str(error) != said:
                said = str(error)
                yield TopScreen(f"Looking for a broker: {said}.", last)
        time.sleep(RECONNECT_SECONDS)


def _drawn(view: TopScreen, age: float = 0.0) -> RenderableType:
    from rich.console import Group

    from .. import overview

    if view.snapshot is None:
        return view.away
    # what is kept from before is not continued
    is_of_now = not (view.away or view.snapshot.broker.recovering)
    shown = output.drawn(overview.aged(view.snapshot, age) if is_of_now else view.snapshot)
    return Group(view.away, shown) if view.away else shown
