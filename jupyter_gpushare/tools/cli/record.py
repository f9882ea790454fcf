"""``jupyter gpushare record``: the broker's events, to a file, until Ctrl-C or the broker's end."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import BinaryIO

from ...errors import ConnectionLost, InvalidValue
from ...format import duration
from ...wire.client import Client
from .connection import connect
from .output import tell

HELP = "record the notebooks' use of the devices, for `simulate`"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="one JSON object a line; Ctrl-C ends it")
    command.add_argument(
        "--names", action="store_true", help="include the names of users and notebooks"
    )


def run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    with connect(arguments) as client, _written(arguments.file) as file:
        tell(f"records events to {arguments.file} until Ctrl-C, or until the broker ends")
        count = _record_events(client, file, arguments.names, started)
    lasted = duration(time.monotonic() - started)
    events = f"{count} event{'s' * (count != 1)}"
    tell(f"{arguments.file} has {events} of {lasted}: `jupyter gpushare simulate --from` reads it")
    return 0


def _record_events(client: Client, file: BinaryIO, names: bool, started: float) -> int:
    """Write events until there are no more; return their number."""
    from ...simulator import recorder

    recording, count = recorder.Recorder(names), 0
    with contextlib.suppress(KeyboardInterrupt, ConnectionLost):  # this is the usual way to end it
        for snapshot in client.watch(recorder.INTERVAL_SECONDS):
            for event in recording.events(snapshot, time.monotonic() - started):
                file.write(recorder.encode(event))
                count += 1
            file.flush()
    return count


@contextlib.contextmanager
def _written(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error.strerror}") from None
