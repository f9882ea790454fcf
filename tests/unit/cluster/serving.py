"""A service of a cluster in its own process, which kills itself.

    python -m tests.unit.cluster.serving SITE [POINT]

It submits the jobs of SITE/jobs.json, each once the job before it has computed, and ends when all
of them have ended. POINT tells when it is killed: after the event of this name is in the journal;
`launched`: between a start and its event in the journal; a number with a decimal point, like 0.1:
after these seconds; another number: at this write or act, where each act counts twice, before and
after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event as Flag
from typing import Any, NamedTuple

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster.engines.local import LocalEngine, declared
from jupyter_gpushare.cluster.jobs import Spec
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.cluster.loop import ServiceLoop
from jupyter_gpushare.cluster.service import ClusterService

from .site import QUICK

RULES = GangRules(told=True, tick=0, thresholds=[0.5], least=0.1)


class Point:
    """The point at which the process is killed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        if "." in name:
            signal.setitimer(signal.ITIMER_REAL, float(name))  # its signal ends the process

    def pass_by(self, name: str | None = None) -> None:
        self._count += 1
        if self._name in (name, str(self._count)):
            os.kill(os.getpid(), signal.SIGKILL)


def guard(target: object, point: Point, **acts: str | None) -> None:
    """Make each of these acts pass the point before it, and after it under its name; for `write`
    this is the name of its event."""
    for verb, name in acts.items():
        setattr(target, verb, passing(point, getattr(target, verb), name))


def passing(point: Point, act: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    def pass_by(*given: Any) -> Any:
        point.pass_by()
        result = act(*given)
        point.pass_by(given[1].what if name == "event" else name)
        return result

    return pass_by


def engine_of(cluster: str) -> LocalEngine:
    return LocalEngine(cluster, declared("n0=2 n1=2"))


class Wish(NamedTuple):
    """A job to submit once the job before it has computed for these GPU-seconds."""

    id: str
    gpus: int
    after: float = 0.0


def submit(service: ClusterService, journal: Journal, site: Path, wishes: Iterable[Wish]) -> bool:
    """Submit jobs that are due; return whether all have ended. Jobs of an earlier service stay
    submitted."""
    attained = 0.0
    states = []
    for wish in wishes:
        if attained < wish.after:
            return False
        directory = str(site / "jobs" / wish.id)
        service.submit(wish.id, "", directory, Spec(wish.gpus, resumes=True, tells=True))
        job = journal.job(wish.id)
        assert job is not None
        states.append(job.is_over)
        attained = job.core["run"] * wish.gpus
    return all(states)


def main(site: Path, name: str = "") -> None:
    point, is_over = Point(name), Flag()
    wishes = [Wish(*wish) for wish in json.loads((site / "jobs.json").read_text())]
    journal = Journal(site / "cluster.sqlite")
    engine = engine_of(journal.cluster())
    guard(journal, point, write="event", save=None)
    guard(engine, point, start="launched", ask_yield=None, kill=None)

    def make() -> ClusterService:
        return ClusterService(journal, engine, time.time, rules=RULES, bounds=QUICK)

    def tell(service: ClusterService) -> None:
        assert service.is_valid() == ""
        if submit(service, journal, site, wishes):
            is_over.set()

    ServiceLoop(make, 0.02).run(tell, is_over)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
