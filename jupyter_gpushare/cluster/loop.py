"""Step after step of a service, each with what people have asked for since the last one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from threading import Event

from ..errors import cause
from .service import Service


def run(
    make: Callable[[], Service],
    tell: Callable[[Service], None],
    seconds: float,
    stopped: Event,
) -> None:
    """`make` restores the service from its journal. It is called again after a step that could not
    be written: what that service knows is more than the journal has."""
    service: Service | None = None
    while not stopped.wait(seconds):
        try:
            service = service or make()
            service.step()  # first: a service that has seen no nodes refuses all jobs
            tell(service)
        except (sqlite3.Error, OSError) as error:
            print(f"nothing is started, since a step failed: {cause(error)}", file=sys.stderr)
            service = None
