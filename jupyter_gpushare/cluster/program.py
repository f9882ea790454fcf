"""The process of a service. It ends by a signal, or after a time without jobs and questions."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .._core import GangRules
from ..devices.nvml import gpus
from ..devices.visible import Visible, as_at_first, narrowed
from ..errors import BrokerUnavailable, InvalidValue, cause
from ..settings import Settings, cluster_directory, cluster_socket_path
from ..wire.launch import checked, make_directory
from .engines.engine import HERE, Engine
from .engines.local import Devices, LocalEngine, declared
from .engines.sbatch import options_in, options_of_job
from .engines.slurm import SlurmEngine
from .engines.timeout import ANSWER_SECONDS, EngineWithTimeout
from .hands.command import SECONDS, Ran
from .hands.hands import Hands, words_of
from .journal import Journal
from .looks.verdicts import Bounds
from .loop import ServiceLoop
from .pruning import Retention
from .server import Access, Server
from .service import ClusterService

LOOK_SECONDS = {"local": 1.0, "slurm": 5.0, "ray": 1.0}  # unless a setting says otherwise
MOST_COMMANDS = 4  # of Slurm, for one verb: partitions, nodes, reservations, jobs
MakeEngine = Callable[[str], Engine]  # by the name of a cluster


def run(settings: Settings) -> None:
    """Run the service until it ends. Raises InvalidValue, BrokerUnavailable, and LimitExceeded if
    another one has the journal."""
    path = checked(cluster_socket_path(settings))
    rules = rules_of(settings)
    hands = Hands(words_of(settings.cluster_as_user))
    make_engine = engine_of(settings, hands)
    make_directory(path.parent, hands.are_many)
    journal = opened(cluster_directory(settings) / "cluster.sqlite", path)
    engine = EngineWithTimeout(make_engine(journal.cluster()), answer_seconds_of(settings))
    clock = steady(max((job.saved for job in journal.present()), default=0.0))

    def make() -> ClusterService:
        return ClusterService(
            journal,
            engine,
            clock,
            policy=settings.cluster_policy,
            rules=rules,
            bounds=bounds_of(settings),
            hands=hands,
            keep=Retention(settings.cluster_keep_days, settings.cluster_keep_usage_days),
        )

    loop = ServiceLoop(make, look_seconds_of(settings))
    with Server(path, loop, journal.cluster(), access_of(settings, hands)) as server:
        serve(server, loop, settings.idle_exit_seconds)
    hands.end()
    journal.close()


def look_seconds_of(settings: Settings) -> float:
    return settings.cluster_look_seconds or LOOK_SECONDS[settings.cluster_engine]


def answer_seconds_of(settings: Settings) -> float:
    """Return how long a verb of the engine may take."""
    of_slurm = MOST_COMMANDS * SECONDS + 2.0
    return of_slurm if settings.cluster_engine == "slurm" else ANSWER_SECONDS


def steady(least: float) -> Callable[[], float]:
    """Return a clock that begins at the Unix time, or at `least` if the system's clock was set
    back, and then follows neither corrections of that clock nor the time of a suspend."""
    ahead = max(time.time(), least) - time.monotonic()
    return lambda: time.monotonic() + ahead


def access_of(settings: Settings, hands: Hands) -> Access:
    options_of = options_of_job if settings.cluster_engine == "slurm" else without_options
    if not hands.are_many:
        return Access(hands, options_of)
    limit = settings.cluster_jobs_per_user
    return Access(hands, options_of, settings.socket_mode, settings.socket_group, limit)


def without_options(options: Sequence[str]) -> Sequence[str]:
    """Return no options. Raises InvalidValue if there are any."""
    if options:
        raise InvalidValue(
            f"{options[0]} is for sbatch, and these jobs do not run on Slurm: submit without `--`"
            " and what follows it, or with JUPYTER_GPUSHARE_CLUSTER_ENGINE=slurm"
        )
    return options


def local(settings: Settings, hands: Hands) -> MakeEngine:
    """Raises InvalidValue."""
    if hands.are_many:
        raise InvalidValue(
            "the engine `local` runs jobs of one user: `cluster_as_user` is for the engine `slurm`"
        )
    nodes = declared(settings.cluster_nodes) if settings.cluster_nodes else this_machine()
    return lambda cluster: LocalEngine(
        cluster, nodes, variables=lambda gpus: narrowed(gpus, os.environ)
    )


def slurm(settings: Settings, hands: Hands) -> MakeEngine:
    options = options_in(settings.cluster_sbatch)

    def run_as(user: str, command: Sequence[str], given: str) -> Ran:
        return hands.of(user).run(command, given)

    return lambda cluster: SlurmEngine(cluster, options, run_as=run_as if hands.are_many else None)


def on_ray(settings: Settings, hands: Hands) -> MakeEngine:
    """Raises InvalidValue."""
    if hands.are_many:
        raise InvalidValue("the engine `ray` runs all jobs as the one user that Ray runs as")
    try:
        from .engines.ray import RayEngine
    except ImportError:
        raise InvalidValue(
            "the engine `ray` needs Ray: pip install 'jupyter_gpushare[ray]'"
        ) from None
    return lambda cluster: RayEngine(cluster, settings.cluster_ray_address)


# Each function refuses wrong settings before there is a journal.
ENGINES: dict[str, Callable[[Settings, Hands], MakeEngine]] = {
    "local": local,
    "slurm": slurm,
    "ray": on_ray,
}


def engine_of(settings: Settings, hands: Hands) -> MakeEngine:
    """Raises InvalidValue."""
    return ENGINES[settings.cluster_engine](settings, hands)


def opened(path: Path, socket: Path) -> Journal:
    try:
        return Journal(path, socket)
    except OSError as error:
        raise BrokerUnavailable(f"the journal {path} cannot be opened: {cause(error)}") from None


def serve(server: Server, loop: ServiceLoop, idle_seconds: float) -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def tell(service: ClusterService) -> None:
        if not server.path.exists():  # end, so that clients can start and find another one
            stopped.set()
        if service.jobs():
            server.asked = time.monotonic()
        elif idle_seconds and time.monotonic() - server.asked > idle_seconds:
            stopped.set()

    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"the service of jobs listens on {server.path}", file=sys.stderr, flush=True)
    loop.run(tell, stopped)
    server.path.unlink(missing_ok=True)  # clients that come now start another service
    server.shutdown()


def rules_of(settings: Settings) -> GangRules:
    """Raises InvalidValue."""
    bounds = [float(bound) for bound in settings.cluster_bounds.split()]
    if bounds != sorted({*bounds} - {0.0}):
        raise InvalidValue(
            f"`cluster_bounds` are GPU-seconds above 0, each larger than the one before it, and not"
            f" {settings.cluster_bounds!r}"
        )
    return GangRules(
        told=True,
        tick=0,
        thresholds=bounds,
        quantum=bounds[0],
        knob=settings.cluster_knob,
        least=settings.cluster_least_seconds,
    )


def bounds_of(settings: Settings) -> Bounds:
    return Bounds(
        pending=settings.cluster_pending_seconds,
        begin=settings.cluster_begin_seconds,
        most_least=settings.cluster_most_least_seconds,
    )


def this_machine() -> dict[str, Devices]:
    """Return the GPUs, and slices of GPUs, that CUDA_VISIBLE_DEVICES of this process shows. If
    there are none, return the device `host`; then jobs see no GPU. Raises InvalidValue if only CUDA
    knows which GPU a number means."""
    allowed = [gpu.uuid for gpu in Visible(gpus(), as_at_first(os.environ)).allowed]
    return {HERE: Devices(allowed or ["none"], is_host=not allowed)}
