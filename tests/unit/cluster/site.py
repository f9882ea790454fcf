"""A cluster on this machine, with its service in this process."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster.engines.engine import Engine, Lease, Node, Status
from jupyter_gpushare.cluster.engines.local import LocalEngine, declared
from jupyter_gpushare.cluster.engines.timeout import EngineWithTimeout
from jupyter_gpushare.cluster.jobs import JobRecord, Spec
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.looks.verdicts import Bounds
from jupyter_gpushare.cluster.service import ClusterService
from jupyter_gpushare.errors import EngineUnavailable
from jupyter_gpushare.settings import JobPolicy

from ...polling import until
from .work import TRAINING, generations, iterations, made

QUICK = Bounds(begin=10.0, beat=0.05, postponed=0.05, sweep=1000.0, most_least=0.0)
STEP = 0.01  # seconds of one iteration
TRAIN_STEP = 0.03  # of a training
LONG = 1000  # iterations of a job that does not end before a test hurries it
SECONDS = 200.0  # an event has not come by then; each start of a job takes seconds on two cores
Asks: TypeAlias = "Callable[[Site, str], None]"


class Troubled(LocalEngine):
    """The engine of this machine, parts of which fail on demand of a test."""

    def __init__(self, cluster: str, nodes: str, python: str = sys.executable) -> None:
        super().__init__(cluster, declared(nodes), python)
        self.cannot_kill = False
        self.said: dict[str, Node] = {}  # of nodes, instead of what is so
        self.statuses: dict[str, Status] = {}  # of jobs

    @contextlib.contextmanager
    def hanging(self, verb: str) -> Iterator[threading.Event]:
        """Let a verb hang within the block; the event tells that the verb was called."""
        is_asked, answers = threading.Event(), threading.Event()
        answer = getattr(self, verb)

        def hang(*given: Any) -> Any:
            is_asked.set()
            answers.wait()
            return answer(*given)

        setattr(self, verb, hang)
        try:
            yield is_asked
        finally:
            delattr(self, verb)
            answers.set()

    def nodes(self) -> dict[str, Node]:
        return super().nodes() | self.said

    def kill(self, lease: Lease) -> None:
        if self.cannot_kill:
            raise EngineUnavailable("the node does not answer")
        super().kill(lease)

    def poll(self, leases: Collection[Lease]) -> dict[Lease, Status]:
        found = super().poll(leases)
        return {lease: self.statuses.get(lease.job, found[lease]) for lease in found}


class Site:
    """A service with its journal, its engine, and its jobs, whose directories are in `jobs`."""

    def __init__(
        self,
        path: Path,
        nodes: str = "n0=2 n1=2",
        make_engine: Callable[[str], Engine] | None = None,  # of the name of a cluster
    ) -> None:
        self.path = path
        self.policy: JobPolicy = "las"
        self.rules = GangRules(told=True, tick=0, thresholds=[1.0])
        self.bounds = QUICK
        self.answer_seconds = 60.0
        self.journal = Journal(path / "cluster.sqlite")
        make = make_engine or (lambda cluster: Troubled(cluster, nodes))
        self.engine: Any = make(self.journal.cluster())
        self.service = self.made()
        self.service.step()

    def made(self) -> ClusterService:
        engine = EngineWithTimeout(self.engine, self.answer_seconds)
        given: dict[str, Any] = {"policy": self.policy, "rules": self.rules, "bounds": self.bounds}
        return ClusterService(self.journal, engine, time.time, **given)

    def restart(self, **bounds: float) -> None:
        """Restart the service as after a kill, with only the journal, the directories and the
        processes."""
        self.bounds = self.bounds._replace(**bounds)
        self.journal.close()
        self.journal = Journal(self.path / "cluster.sqlite")
        self.service = self.made()

    def submit(self, id: str, *command: object, gpus: float = 1, **spec: bool | int) -> Path:
        directory = self.directory(id)
        if not directory.exists():
            made(directory, *command)
        spec = {"resumes": True, "tells": True, **spec}
        self.service.submit(id, "", str(directory), Spec(gpus, **spec))  # type: ignore[arg-type]
        return directory

    def train(self, id: str, program: str, *given: object, gpus: int) -> Path:
        """Submit a training of this folder that does not know this package; return the path of its
        result."""
        out = self.path / f"{id}.json"
        words = (sys.executable, TRAINING / program, out, TRAIN_STEP, *given)
        nodes = 1 if gpus < 3 else 0
        self.submit(id, *words, gpus=gpus, resumes=False, tells=False, nodes=nodes)
        return out

    def trained(
        self,
        id: str,
        program: str,
        *given: object,
        gpus: int,
        stops: Iterable[int] = (),
        asks: Asks | None = None,
    ) -> Any:
        """Return the result of a training that is asked to yield at these iterations."""
        out = self.train(id, program, *given, gpus=gpus)
        for iteration in stops:
            self.stop(id, iteration, asks)
        self.until_state(**{id: "done"})
        return json.loads(out.read_text())

    def directory(self, id: str) -> Path:
        return self.path / "jobs" / id

    def job(self, id: str) -> JobRecord:
        found = self.journal.job(id)
        assert found is not None
        return found

    def state(self, id: str) -> str:
        return self.job(id).state

    def events(self, id: str) -> list[str]:
        return [event.what for event in self.journal.events(id)]

    def reasons(self, id: str) -> list[str]:
        """Return why the service has ended generations of the job."""
        return [event.detail for event in self.journal.events(id) if event.what == "end"]

    def processes(self, id: str, having: str = "GPUSHARE_LEASE") -> list[psutil.Process]:
        """Return the processes of the job's first generation: launchers, and their children, by a
        variable."""
        name = f"gs.{self.journal.cluster()}.{id}.g1"
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                there = process.environ()
                if there.get("GPUSHARE_LEASE") == name and having in there:
                    found.append(process)
        return found

    def ranks(self, id: str) -> list[psutil.Process]:
        return self.processes(id, "GPUSHARE_JOB")

    def computed(self, id: str) -> list[int]:
        """Return the iterations of the job's leaders, in the order of its generations."""
        return iterations(generations(self.directory(id)))

    def is_whole(self, id: str, count: int) -> bool:
        """Whether each iteration was computed exactly once."""
        return self.computed(id) == [*range(1, count + 1)]

    def attained(self, id: str) -> float:
        """Return the GPU-seconds that the present generation has reported."""
        job = self.job(id)
        told = generation.progress(generation.path_of(self.directory(id), job.generation))
        return told.computed * job.spec.gpus if told else 0.0

    def ask(self, id: str) -> None:
        self.engine.ask_yield(next(each for each in self.engine.adopt() if each.job == id))

    def terminate(self, id: str) -> None:
        """End the job early, as Slurm does."""
        for process in self.processes(id):
            process.terminate()

    def stop(self, id: str, iteration: int, asks: Asks | None) -> None:
        """Ask the job to yield once it has computed this iteration, and wait until it has
        yielded."""
        (self.directory(id) / f"wait-{iteration}").touch()
        self.until(lambda: iteration in self.computed(id))
        before = self.job(id)
        (asks or Site.ask)(self, id)
        self.until(lambda: self.job(id).generation > before.generation)
        assert (self.job(id).yields, self.job(id).losses) == (before.yields + 1, 0)

    def computes(self, id: str) -> bool:
        """Whether the leader has computed an iteration in this generation."""
        path = generation.path_of(self.directory(id), self.job(id).generation)
        return (path / "ran").exists()

    def steps(self, count: int = 3) -> None:
        for _ in range(count):
            self.service.step()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Make steps of the service until the condition holds."""

        def step() -> bool:
            self.service.step()
            assert self.service.is_valid() == ""
            return is_so()

        until(step, SECONDS)

    def until_state(self, **states: str) -> None:
        self.until(lambda: {id: self.state(id) for id in states} == states)

    def begin(self, id: str, *command: object, attains: float = -1.0, **spec: Any) -> Path:
        """Submit a job, and wait until it computes, and has reported more than these
        GPU-seconds."""
        directory = self.submit(id, *command, **spec)
        self.until(lambda: self.computes(id) and self.attained(id) > attains)
        return directory

    def finish(self, **counts: int) -> None:
        """Hurry these jobs, and check that each ends with its number of iterations, each computed
        once."""
        self.hurry(*counts)
        self.until_state(**dict.fromkeys(counts, "done"))
        for id, count in counts.items():
            assert self.is_whole(id, count)

    def hurry(self, *ids: str) -> None:
        """Let the remaining iterations of these jobs take no time."""
        for id in ids:
            (self.directory(id) / "hurry").touch()

    def check_that_one_yields(self, **spec: Any) -> None:
        """Check that a job that has computed yields to a job that has not, and continues after
        it."""
        self.begin("long", LONG, 0.02, attains=1, gpus=4, **spec)
        self.submit("short", 10, STEP, gpus=2)
        self.until_state(short="done")
        assert self.job("long").ended is None
        self.finish(long=LONG, short=10)
        long = self.job("long")
        assert (long.yields, long.generation, long.losses) == (1, 2, 0)

    def close(self) -> None:
        kind = LocalEngine if isinstance(self.engine, Troubled) else type(self.engine)
        for lease in kind.adopt(self.engine):
            kind.kill(self.engine, lease)
        self.journal.close()
