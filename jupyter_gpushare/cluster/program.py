"""The process of a service. It ends by a signal, or once no job is left and no question comes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from .._core import GangRules
from ..devices import find_all
from ..errors import BrokerUnavailable, cause
from ..settings import Settings, cluster_directory, cluster_socket_path
from ..wire.launch import checked, make_directory
from .engines.local import LocalEngine, declared
from .engines.timeout import EngineWithTimeout
from .journal import Journal
from .loop import Loop
from .server import Server
from .service import Service

RULES = GangRules(told=True, tick=0, thresholds=[3600.0])


def run(settings: Settings) -> None:
    """Raises InvalidValue, BrokerUnavailable, and LimitExceeded where another one has the
    journal."""
    path = checked(cluster_socket_path(settings))
    nodes = declared(settings.cluster_nodes or this_machine(settings))
    make_directory(path.parent)
    journal = opened(cluster_directory(settings) / "cluster.sqlite")
    engine = EngineWithTimeout(LocalEngine(journal.cluster(), nodes))

    def make() -> Service:
        return Service(journal, engine, time.time, rules=RULES)

    loop = Loop(make, settings.cluster_look_seconds)
    with Server(path, loop, journal.cluster()) as server:
        serve(server, loop, settings.idle_exit_seconds)
    path.unlink(missing_ok=True)
    journal.close()


def opened(path: Path) -> Journal:
    try:
        return Journal(path)
    except OSError as error:
        raise BrokerUnavailable(f"the journal {path} cannot be opened: {cause(error)}") from None


def serve(server: Server, loop: Loop, idle_seconds: float) -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def tell(service: Service) -> None:
        if not server.path.exists():  # so that one can start that is found
            stopped.set()
        if service.jobs():
            server.asked = time.monotonic()
        elif idle_seconds and time.monotonic() - server.asked > idle_seconds:
            stopped.set()

    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"the service of jobs listens on {server.path}", file=sys.stderr, flush=True)
    loop.run(tell, stopped)
    server.shutdown()


def this_machine(settings: Settings) -> str:
    """Return the declaration of this machine, whose device `host` counts as one GPU."""
    gpus = sum(device.name.startswith("cuda:") for device in find_all(settings))
    return f"here={max(1, gpus)}"
