"""Six jobs on three nodes with four GPUs each, against the own order of Slurm, and of Ray.

Slurm starts jobs in the order of their arrival, and a waiting job blocks those behind it. Ray
starts a waiting job whenever it finds room. Our service starts the job that has computed least, and
the longest job yields at an iteration boundary. Both ways have the same jobs with the same
arrivals, in alternating runs on the same engine. A job counts iterations, saves what it has
counted, and computes nothing, so this is about the order alone.

The time of a job is that from its submission to its end. `missing` and `twice` are iterations that
no generation of a job has computed, or more than one. `virtual_time_off` compares the same jobs in
virtual time, where computing and starting take time, and nothing else does. It needs root and
Slurm's programs, or Ray.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidence.gangs import GangSimulation
from measure import Figure, publish

from cluster.engines import (
    ENGINES,
    ITERATION_SECONDS,
    JOBS,
    LOOK_SECONDS,
    NODES,
    ROOT,
    On,
    Six,
    arrivals,
)
from jupyter_gpushare._core import Gang, GangRules
from jupyter_gpushare.cluster.engines.timeout import EngineWithTimeout
from jupyter_gpushare.cluster.jobs import JobRecord, Spec
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.looks.verdicts import Bounds
from jupyter_gpushare.cluster.service import ClusterService

ORDER: Mapping[str, Any] = {"thresholds": [24.0], "least": 2.0, "knob": 8.0}
RULES = GangRules(told=True, tick=0, **ORDER)
COUNTS = ROOT / "tests" / "unit" / "cluster" / "job.py"


class Ours(NamedTuple):
    """The figures of a run, from its journal and its directories."""

    seconds: Mapping[str, float]
    missing: int
    twice: int
    yields: list[float]  # seconds from asking to the end of a generation
    restarts: list[float]  # from a start to the first second that was computed


def in_our_order(folder: Path, on: On) -> Ours:
    journal = Journal(folder / "cluster.sqlite")
    engine = EngineWithTimeout(on.engine(journal.cluster()))
    bounds = Bounds(most_least=0.0)  # virtual time has turns of a fixed length
    service = ClusterService(journal, engine, time.time, rules=RULES, bounds=bounds)

    def step() -> None:
        service.step()
        time.sleep(LOOK_SECONDS)

    def submit(name: str, job: Six) -> None:
        directory = folder / name
        directory.mkdir()
        words = [sys.executable, str(COUNTS), str(job.iterations), str(ITERATION_SECONDS)]
        generation.write(directory / "job.json", {"command": words})
        service.submit(name, "", str(directory), Spec(job.gpus, resumes=True, tells=True))

    step()
    arrivals(submit, step)
    while service.jobs():
        step()
    jobs = {name: journal.job(name) for name in JOBS}
    counts = {name: computed(folder / name) for name in JOBS}
    found = Ours(
        {name: seconds_of(job) for name, job in jobs.items() if job is not None},
        sum(JOBS[name].iterations - len(count) for name, count in counts.items()),
        sum(number - 1 for count in counts.values() for number in count.values()),
        [*between(journal, "ask", "yielded")],
        [*between(journal, "start", "computes")],
    )
    journal.close()
    return found


def seconds_of(job: JobRecord) -> float:
    assert job.ended is not None
    return job.ended - job.submitted


def computed(directory: Path) -> Counter[str]:
    """How often each iteration of a job was computed."""
    return Counter(word for ran in directory.glob("g*/ran") for word in ran.read_text().split())


def between(journal: Journal, first: str, then: str) -> Iterator[float]:
    """Yield the seconds from each event to the next one of the same job."""
    for name in JOBS:
        begun = None
        for event in journal.events(name):
            if event.what == first:
                begun = event.at
            elif event.what == then and begun is not None:
                yield event.at - begun
                begun = None


def virtual(starts: float) -> dict[str, float]:
    """Return the seconds of each job in virtual time, where each start takes `starts` seconds."""
    gangs = [Gang(name, job.gpus, job.seconds, arrival=job.arrival) for name, job in JOBS.items()]
    rules = GangRules(tick=0, start=starts, resume=starts, **ORDER)
    simulation = GangSimulation(gangs, list(NODES.values()), "las", rules)
    simulation.run()
    return {name: simulation.ended[name] - job.arrival for name, job in JOBS.items()}


def off(expected: Mapping[str, float], ours: Ours) -> float:
    """Return the largest error of virtual time over all jobs, where 1 is 10 % of the real time, or
    2 s if that is more."""
    return max(
        abs(expected[name] - real) / max(0.1 * real, 2.0) for name, real in ours.seconds.items()
    )


def figures(pairs: Sequence[tuple[Mapping[str, float], Ours]]) -> list[Figure]:
    ratios = [
        statistics.median(theirs[name] / ours.seconds[name] for name in JOBS)
        for theirs, ours in pairs
    ]
    prices = [ours.seconds["a"] / theirs["a"] for theirs, ours in pairs]
    all_ours = [ours for _, ours in pairs]
    restart = statistics.median(s for ours in all_ours for s in ours.restarts)
    in_virtual_time = virtual(restart)
    return [
        Figure("median_ratio", statistics.median(ratios), target=2.5, at_least=True),
        Figure("median_ratio_least", min(ratios)),
        Figure("median_ratio_most", max(ratios)),
        Figure("price_of_the_longest", statistics.median(prices), target=1.4),
        Figure("missing", sum(ours.missing for ours in all_ours), target=0),
        Figure("twice", sum(ours.twice for ours in all_ours), target=0),
        Figure("yield_s", statistics.median(s for o in all_ours for s in o.yields), "s", target=1),
        Figure("restart_s", restart, "s"),
        Figure(
            "virtual_time_off",
            statistics.median(off(in_virtual_time, ours) for ours in all_ours),
            target=1,
        ),
    ]


# Ray listens on all addresses.
NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
NAMES = {"slurm": "cluster", "ray": "cluster_on_ray"}
INSIDE = "GPUSHARE_BENCHMARK_INSIDE"


def measured(engine: str, pairs: int) -> list[tuple[Mapping[str, float], Ours]]:
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as home:  # Ray's sockets are long
        folders = (Path(home) / str(number) for number in itertools.count())
        os.environ["GPUSHARE_ADDRESS"] = "127.0.0.1"
        on = ENGINES[engine](next_of(folders))
        try:
            return [
                (on.in_its_order(next_of(folders)), in_our_order(next_of(folders), on))
                for _ in range(pairs)
            ]
        finally:
            on.end()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    options.add_argument("--engine", choices=ENGINES, default="slurm")
    options.add_argument("--pairs", type=int, default=3)
    chosen = options.parse_args()
    if reason := ENGINES[chosen.engine].missing():
        print(f"six_jobs cannot be measured: {reason}", file=sys.stderr)
        return 1
    if chosen.engine == "ray" and INSIDE not in os.environ:
        again = [*NETWORK, sys.executable, *sys.argv]
        return subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return publish(NAMES[chosen.engine], figures(measured(chosen.engine, chosen.pairs)))


def next_of(folders: Iterator[Path]) -> Path:
    (folder := next(folders)).mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
