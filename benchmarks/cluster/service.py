"""The cost of a service of jobs that looks after 500 computing and 100 waiting jobs.

The service, its journal, its queue, and the directories of the jobs are the real ones. The engine
answers from a table: a real one has its own work to do, and 500 jobs need more machines than one.
Between two looks each job reports its progress and its launchers write heartbeats; this time is not
counted.

`core_percent` is the share of a core that the service uses if it looks each second, the default
except for Slurm, where it looks each 5 s. `step_ms` is the time of a step; questions wait while it
decides. `question_ms` is the time of an answer to `jupyter gpushare jobs`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from measure import Figure, publish

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster.engines.engine import Engine, Lease, Node, Start, Status
from jupyter_gpushare.cluster.engines.timeout import EngineWithTimeout
from jupyter_gpushare.cluster.hands.hands import own_user
from jupyter_gpushare.cluster.jobs import JobRecord, Spec
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.service import ClusterService
from jupyter_gpushare.cluster.views import cluster_view

ACTIVE, WAITING = 500, 100
GPUS = 8  # of a node
WIDTHS = (1, 1, 1, 2, 4, 8, 1, 16)  # GPUs of the jobs, in turn
NODES = -(-ACTIVE * sum(WIDTHS) // len(WIDTHS) // GPUS)
LOOKS = 40
LOOK_SECONDS = 1.0
RULES = GangRules(told=True, tick=0, thresholds=[3600.0], knob=8.0, least=30.0)


class Table(Engine):
    """An engine whose jobs run until the benchmark ends."""

    def __init__(self) -> None:
        self._used = dict.fromkeys((f"n{number}" for number in range(NODES)), 0.0)
        self._leases: set[Lease] = set()

    def nodes(self) -> Mapping[str, Node]:
        return {name: Node(GPUS, used=used) for name, used in self._used.items()}

    def start(self, start: Start) -> Lease:
        for name, gpus in start.where.items():
            self._used[name] += gpus
        lease = Lease(start.job, start.generation, start.name)
        self._leases.add(lease)
        return lease

    def ask_yield(self, lease: Lease) -> None: ...

    def kill(self, lease: Lease) -> None: ...

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        return {lease: Status("running") for lease in leases if lease in self._leases}

    def adopt(self) -> Collection[Lease]:
        return {*self._leases}


@contextmanager
def busy_service(folder: Path) -> Iterator[ClusterService]:
    """A service whose jobs compute or wait."""
    with closing(Journal(folder / "cluster.sqlite")) as journal:
        engine = EngineWithTimeout(Table())
        service = ClusterService(journal, engine, time.time, rules=RULES)
        service.step()
        for number in range(ACTIVE + WAITING):
            directory = folder / f"job-{number}"
            directory.mkdir()
            gpus = WIDTHS[number % len(WIDTHS)] if number < ACTIVE else max(WIDTHS)
            spec = Spec(gpus, tells=True)
            service.submit(directory.name, own_user(), str(directory), spec)
        service.step()
        for job in active(service):
            begin(job)
        tell(service, 1)
        service.step()
        assert all(job.state == "running" for job in active(service))
        yield service


def active(service: ClusterService) -> list[JobRecord]:
    return [job for job in service.jobs() if job.is_active]


def begin(job: JobRecord) -> None:
    """Write the first files of launchers and ranks."""
    here = generation.path_of(Path(job.directory), job.generation)
    for name in (generation.MASTER, *(f"{kind}.{node}" for kind in KINDS for node in job.place)):
        (here / name).touch()


KINDS = ("beat", "log")


def tell(service: ClusterService, iteration: int) -> None:
    """Write one more second of progress for all jobs."""
    for job in active(service):
        here = generation.path_of(Path(job.directory), job.generation)
        for node in job.place:
            (here / f"beat.{node}").touch()
        told = {"iteration": iteration, "computed": float(iteration), "of": 10_000}
        (part := here / ".progress").write_text(json.dumps(told))
        part.rename(here / "progress.json")


def cpu_ms(act: Callable[[], object]) -> tuple[float, float]:
    """Return how long it has computed, in all threads, and how long it took."""
    computed, began = time.process_time(), time.perf_counter()
    act()
    return 1e3 * (time.process_time() - computed), 1e3 * (time.perf_counter() - began)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gs-") as home, busy_service(Path(home)) as service:
        looks, questions = [], []
        for iteration in range(2, LOOKS + 2):
            tell(service, iteration)
            looks.append(cpu_ms(service.step))
            questions.append(
                cpu_ms(lambda: cluster_view(service, own_user(), "", False, "", time.time()))
            )
        assert len(active(service)) == ACTIVE
    mean = statistics.mean(computed for computed, _ in looks)
    share = mean / (10 * LOOK_SECONDS)
    return publish(
        "jobs",
        [
            Figure("core_percent", share, "%", target=5.0),
            Figure("step_ms", statistics.median(took for _, took in looks), "ms"),
            Figure("question_ms", statistics.median(computed for computed, _ in questions), "ms"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
