"""``jupyter gpushare top``: a full screen; without a terminal, `status` after each change.

It outlives the broker and shows the next one.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BrokerUnavailable, ConnectionLost, GpuShareError
from . import keys, output
from .argument_types import seconds
from .connection import connect

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...wire.snapshot import Snapshot

HELP = "show notebooks live; arrow keys choose one, q ends it"
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
    """The last Snapshot, and since when it is shown, in seconds of `time.monotonic`. `away` says
    why it is outdated, or is empty."""

    away: str
    snapshot: Snapshot | None
    since: float

    def of_now(self) -> Snapshot | None:
        """Return the Snapshot at this moment: its waits and turns have continued since it came. A
        Snapshot that is kept from a previous broker does not age."""
        from .. import overview

        if self.snapshot is None or self.away or self.snapshot.broker.recovering:
            return self.snapshot
        return overview.aged(self.snapshot, time.monotonic() - self.since)


def run(arguments: argparse.Namespace) -> int:
    try:
        if sys.stdout.isatty():
            Terminal(arguments).run()
        else:
            for view in _views(arguments):
                output.show(_printed(view))
    except KeyboardInterrupt:
        pass  # this is a usual way to leave it
    return 0


class Terminal:
    """A full screen, which another thread draws; the calling thread reads keys."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._latest = TopScreen("", None, 0.0)
        self._chosen = 0

    def run(self) -> None:
        from rich.live import Live

        threading.Thread(target=self._follow, daemon=True).start()
        with (
            keys.pressed() as presses,
            Live(get_renderable=self._draw, refresh_per_second=4, screen=True) as live,
        ):
            for key in presses:
                if key == "q":
                    return
                self._choose(key)
                live.refresh()

    def _follow(self) -> None:
        try:
            for view in _views(self._arguments):
                self._latest = view
        except GpuShareError as error:
            self._latest = TopScreen(f"{error}.", self._latest.snapshot, time.monotonic())

    def _choose(self, key: str) -> None:
        from ..screen import lines

        snapshot = self._latest.snapshot
        count = len(lines(snapshot)) if snapshot else 0
        self._chosen = max(0, min(self._chosen + keys.STEPS.get(key, 0), count - 1))

    def _draw(self) -> RenderableType:
        from ..screen import Screen

        latest = self._latest
        snapshot = latest.of_now()
        return Screen(latest.away, snapshot, self._chosen) if snapshot else latest.away


def _views(arguments: argparse.Namespace) -> Iterator[TopScreen]:
    """Yield views as they change. The last Snapshot stays while there is no broker. Then it stays
    until its notebooks are back with the next broker, or the recovery of this broker has ended."""
    from .. import overview

    last: Snapshot | None = None
    said = ""
    while True:
        try:
            with connect(arguments) as client:
                for snapshot in client.watch(arguments.interval):
                    last, said = overview.during_recovery(last, snapshot), ""
                    yield TopScreen("", last, time.monotonic())
        except (BrokerUnavailable, ConnectionLost) as error:
            if str(error) != said:
                said = str(error)
                yield TopScreen(f"Looking for a broker: {said}.", last, time.monotonic())
        time.sleep(RECONNECT_SECONDS)


def _printed(view: TopScreen) -> RenderableType:
    from rich.console import Group

    if (snapshot := view.of_now()) is None:
        return view.away
    shown = output.drawn(snapshot)
    return Group(view.away, shown) if view.away else shown
