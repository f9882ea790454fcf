"""Two jobs that Slurm has placed on one GPU that is divided into shards: how often they compute at
the same time, without a broker on the node and with one.

Each job has half of the GPU and repeats an iteration that only takes time, so this is about turns
alone. An iteration overlaps if one of the other job begins before it has ended. It needs root and
Slurm's programs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from measure import Figure, broker, publish

from jupyter_gpushare._core import GangRules
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.cluster.engines.timeout import EngineWithTimeout
from jupyter_gpushare.cluster.jobs import Spec
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.service import ClusterService
from jupyter_gpushare.settings import as_environment

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "cluster"))
from slurm import Slurm, missing  # noqa: E402

ITERATIONS = 40
LOOK_SECONDS = 0.2
# Its iterations take turns if there is a broker; without one, `with turn():` would start one.
SCRIPT = """
import contextlib, os, sys, time
import jupyter_gpushare as gpushare

takes_turns = sys.argv[2] == "turns"
nothing = contextlib.nullcontext
with gpushare.session() if takes_turns else nothing(), open(sys.argv[1], "a") as file:
    for _ in range({iterations}):
        with gpushare.turn() if takes_turns else nothing():
            began = time.time()
            time.sleep(0.05)
            file.write(f"{{began}} {{time.time()}} {{os.environ['CUDA_VISIBLE_DEVICES']}}\\n")
            file.flush()
"""


class Span(NamedTuple):
    """One iteration: its beginning and end, its GPU and its job."""

    began: float
    ended: float
    gpu: str
    job: str


class Overlap(NamedTuple):
    """How many iterations of two jobs there were, on how many GPUs, and how many overlap."""

    iterations: int
    gpus: int
    overlapping: int


def ran(folder: Path, how: str) -> list[Span]:
    """Run both jobs to their end, and return their iterations in order."""
    (folder / "job.py").write_text(SCRIPT.format(iterations=ITERATIONS))
    journal = Journal(folder / "cluster.sqlite")
    engine = EngineWithTimeout(SlurmEngine(journal.cluster()))
    service = ClusterService(journal, engine, time.time, rules=GangRules(told=True, tick=0))
    service.step()
    for name in "ab":
        (directory := folder / name).mkdir()
        words = [sys.executable, str(folder / "job.py"), str(directory / "ran"), how]
        generation.write(directory / "job.json", {"command": words})
        service.submit(name, "", str(directory), Spec(0.5))
    while service.jobs():
        service.step()
        time.sleep(LOOK_SECONDS)
    journal.close()
    return sorted(span for name in "ab" for span in spans(folder / name / "ran", name))


def spans(file: Path, job: str) -> Iterator[Span]:
    for line in file.read_text().splitlines():
        began, ended, gpu = line.split()
        yield Span(float(began), float(ended), gpu, job)


def overlap(spans: list[Span]) -> Overlap:
    overlapping = sum(
        after.began < before.ended and after.job != before.job for before, after in pairwise(spans)
    )
    return Overlap(len(spans), len({span.gpu for span in spans}), overlapping)


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    folder.mkdir()
    started = Slurm(folder, {"n0": 1}, {"n0": 2})
    os.environ.update(started.environment, GPUSHARE_ADDRESS="127.0.0.1")
    try:
        yield
    finally:
        started.end()


def measured(home: Path) -> tuple[Overlap, Overlap]:
    """Return the overlap without a broker, and with one."""
    with slurm(home / "slurm"), broker() as (settings, _):
        os.environ.update(as_environment(settings))
        found = []
        for how in ("alone", "turns"):
            (folder := home / how).mkdir()
            found.append(overlap(ran(folder, how)))
        return found[0], found[1]


def figures(without: Overlap, with_broker: Overlap) -> list[Figure]:
    return [
        Figure("iterations", min(without.iterations, with_broker.iterations)),
        Figure("gpus", max(without.gpus, with_broker.gpus), target=1),
        Figure("overlapping_without_a_broker", without.overlapping),
        Figure("overlapping_with_a_broker", with_broker.overlapping, target=0),
    ]


def main() -> int:
    argparse.ArgumentParser(description=__doc__.partition("\n\n")[0]).parse_args()
    if reason := missing():
        print(f"shared_gpu cannot be measured: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        return publish("shared_gpu", figures(*measured(Path(home))))


if __name__ == "__main__":
    sys.exit(main())
