"""The six jobs of `six_jobs.py`, and the engines that run them in their own order."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from jupyter_gpushare.cluster.engines.engine import Engine
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.cluster.engines.slurm_commands import run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "cluster"))
from ray_cluster import ADDRESS, RayCluster  # noqa: E402
from slurm import Slurm, missing  # noqa: E402

NODES = {"n0": 4, "n1": 4, "n2": 4}
ITERATION_SECONDS = 0.1
LOOK_SECONDS = 0.2
# Under Slurm's own order there are no generations, and jobs save nothing.
SCRIPT = """#!/bin/bash
srun --ntasks-per-node=1 {python} -c 'import time; [time.sleep({each}) for _ in range({count})]'
date +%s.%N > {end}.part && mv {end}.part {end}
"""


class Six(NamedTuple):
    """A job of the six: GPUs, seconds that it computes, and its arrival."""

    gpus: int
    seconds: float
    arrival: float

    @property
    def iterations(self) -> int:
        return round(self.seconds / ITERATION_SECONDS)

    @property
    def nodes(self) -> int:
        return -(-self.gpus // 4)


JOBS = {
    "a": Six(12, 20.0, 0.0),
    "b": Six(8, 12.0, 1.0),
    "c": Six(4, 2.0, 3.0),
    "d": Six(2, 3.0, 4.0),
    "e": Six(4, 2.0, 6.0),
    "f": Six(1, 1.5, 8.0),
}


def arrivals(submit: Callable[[str, Six], None], step: Callable[[], None]) -> None:
    """Submit each job when it is due."""
    began = time.monotonic()
    for name, job in JOBS.items():
        while time.monotonic() - began < job.arrival:
            step()
        submit(name, job)


class On(Protocol):
    """An engine of this machine."""

    def __init__(self, folder: Path) -> None: ...

    @staticmethod
    def missing() -> str:
        """Return why the engine cannot run here, or an empty string."""

    def engine(self, cluster: str) -> Engine: ...

    def in_its_order(self, folder: Path) -> Mapping[str, float]:
        """Run the jobs in the engine's own order, and return the seconds of each."""

    def end(self) -> None: ...


class OnSlurm(On):
    """A Slurm."""

    missing = staticmethod(missing)

    def __init__(self, folder: Path) -> None:
        self._slurm = Slurm(folder, NODES)
        os.environ.update(self._slurm.environment)

    def engine(self, cluster: str) -> Engine:
        return SlurmEngine(cluster)

    def in_its_order(self, folder: Path) -> dict[str, float]:
        submitted: dict[str, float] = {}

        def submit(name: str, job: Six) -> None:
            submitted[name] = time.time()
            script = SCRIPT.format(
                python=sys.executable,
                each=ITERATION_SECONDS,
                count=job.iterations,
                end=folder / name,
            )
            (path := folder / f"{name}.sh").write_text(script)
            run(
                *("sbatch", f"--job-name={name}", f"--nodes={job.nodes}", "--output=/dev/null"),
                *(f"--gpus-per-node={job.gpus // job.nodes}", "--ntasks-per-node=1", str(path)),
            )

        arrivals(submit, lambda: time.sleep(LOOK_SECONDS / 4))
        while not all((folder / name).exists() for name in JOBS):
            time.sleep(LOOK_SECONDS)
        return {name: float((folder / name).read_text()) - at for name, at in submitted.items()}

    def end(self) -> None:
        self._slurm.end()


class OnRay(On):
    """A Ray: a placement group for each job, and a task on each of its nodes."""

    def __init__(self, folder: Path) -> None:
        self._ray = RayCluster(folder, NODES)

    @staticmethod
    def missing() -> str:
        if importlib.util.find_spec("ray") is None:
            return "it needs ray"
        return "" if os.geteuid() == 0 else "a network of its own needs root"

    def engine(self, cluster: str) -> Engine:
        from jupyter_gpushare.cluster.engines.ray import RayEngine

        return RayEngine(cluster, ADDRESS)

    def in_its_order(self, folder: Path) -> dict[str, float]:
        import ray

        ray.init(ADDRESS, log_to_driver=False, configure_logging=False)
        seconds: dict[str, float] = {}

        def follow(name: str, job: Six) -> None:
            submitted = time.time()
            self._compute(job)
            seconds[name] = time.time() - submitted

        followers: list[threading.Thread] = []

        def submit(name: str, job: Six) -> None:
            followers.append(threading.Thread(target=follow, args=(name, job)))
            followers[-1].start()

        arrivals(submit, lambda: time.sleep(LOOK_SECONDS / 4))
        for follower in followers:
            follower.join()
        ray.shutdown()
        return seconds

    def _compute(self, job: Six) -> None:
        import ray
        from ray.util import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Place

        each = job.gpus // job.nodes
        group = placement_group([{"GPU": each}] * job.nodes, strategy="PACK")
        ray.get(group.ready())
        task = ray.remote(repeated)
        nodes = [
            task.options(num_gpus=each, num_cpus=0, scheduling_strategy=Place(group, node))
            for node in range(job.nodes)
        ]
        ray.get([node.remote(job.iterations, ITERATION_SECONDS) for node in nodes])
        remove_placement_group(group)

    def end(self) -> None:
        self._ray.end()


def repeated(iterations: int, seconds: float) -> None:
    for _ in range(iterations):
        time.sleep(seconds)


ENGINES: dict[str, type[On]] = {"slurm": OnSlurm, "ray": OnRay}
