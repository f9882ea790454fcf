"""Rows: failures of a job's disk, of the service, and of a real Slurm. Each job computes each of
its iterations, and only once unless a checkpoint was lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.engines.slurm import SlurmEngine

from ...makers import maker
from ...polling import until
from ...unit.cluster.conftest import Slurm, close_without_slurm, disk_of_a_megabyte, missing
from ...unit.cluster.launch.test_launcher import lives
from ...unit.cluster.site import Site
from ...unit.cluster.test_killed import POINTS, Killed
from .matrix import row, rows
from .scene import Scene

STEP = 0.02
COUNT = 6000  # iterations; Slurm may take half a minute to notice what has happened to a node
# It announces that it saves each tenth of a second, and ends once it may.
SAVES = """
import os, sys, time
import jupyter_gpushare as gpushare
done = []
gpushare.checkpoint(done=done, every=0.1)
def endless():
    while not os.path.exists(sys.argv[1]):
        yield len(done)
for number in gpushare.iterations(endless()):
    done.append(number)
    time.sleep(0.01)
assert done == [*range(len(done))]
"""
COMMAND = """#!/bin/sh
while [ -e {folder}/{name}-hangs ]; do sleep 0.1; done
[ -e {folder}/{name}-is-mad ] || exec "{real}" "$@"
"{real}" "$@" > /dev/null
head -c 300 /dev/urandom | base64
"""
COMMANDS = ("squeue", "scontrol", "sbatch", "scancel")


# --- on this machine ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    (disk := tmp_path / "site" / "jobs").mkdir(parents=True)
    with disk_of_a_megabyte(disk):
        yield disk.parent


@row("the disk of a job is full when it saves, and has room again")
def full_disk_of_a_job(scene: Scene, small_disk: Path) -> float:
    with contextlib.closing(Site(small_disk)) as site:
        may_end = small_disk / "may_end"
        words = (sys.executable, "-c", SAVES, may_end)
        job = site.submit("a", *words, resumes=False, tells=False)
        site.until(lambda: bool(checkpoints(job)))
        with open(job / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 12))
        before = checkpoints(job)
        since = scene.await_turn()
        for _ in range(3):
            site.service.step()
            time.sleep(0.3)
        assert checkpoints(job) & before, "the checkpoint that it had is lost"
        (job / "filler").unlink()
        site.until(lambda: not checkpoints(job) & before)
        may_end.touch()
        site.until_state(a="done")
        assert (site.job("a").generation, site.job("a").losses) == (1, 0)
    return since


def checkpoints(job: Path) -> set[str]:
    return {path.name for path in job.glob("g1/it-*")}


def killed_service(scene: Scene, point: str, tmp_path: Path) -> float:
    killed = Killed(tmp_path)
    try:
        assert killed.serve(point) == -signal.SIGKILL
        since = scene.await_turn()
        assert killed.serve() == 0
        killed.check()
    finally:
        killed.close()
    return since


rows(
    killed_service,
    **{
        f"killed_service_{point}": (f"the service is killed at the step `{point}` of a job", point)
        for point in POINTS
    },
)


# --- on a Slurm -----------------------------------------------------------------------------------


class SlurmSite(Site):
    """A site on a Slurm: its jobs, its daemons, and commands that can be made to hang or to print
    garbage."""

    def __init__(self, path: Path, slurm: Slurm, *options: str) -> None:
        self.slurm = slurm
        super().__init__(path, make_engine=lambda cluster: SlurmEngine(cluster, options))

    def kill(self, daemon: str) -> None:
        os.kill(pid := self.slurm.pid(daemon), signal.SIGKILL)
        until(lambda: not lives(pid))

    def node(self, id: str) -> str:
        (name,) = self.job(id).place
        return name

    @contextlib.contextmanager
    def spoiled(self, how: str, *commands: str) -> Iterator[None]:
        marks = [self.path.with_name("bin") / f"{command}-{how}" for command in commands]
        for mark in marks:
            mark.touch()
        yield
        for mark in marks:
            mark.unlink()

    def moves(self, scene: Scene, breaks: Callable[[str], object] | None, yields: int) -> float:
        """Let job `a` compute, break its node by `breaks` if given, and wait until it continues as
        generation 2 on the other node. Return since when our session waited for a turn
        meanwhile."""
        self.begin("a", COUNT, STEP)
        node = self.node("a")
        if breaks:
            breaks(node)
        since = scene.await_turn()
        self.until(lambda: self.job("a").generation == 2 and self.computes("a"))
        assert self.job("a").yields == yields
        assert self.node("a") != node or not breaks
        self.finish(a=COUNT) if yields else self.is_there("a", generations=2)
        return since

    def is_there(self, id: str, generations: int = 1) -> None:
        """Check that no iteration is missing. After a loss the iterations since the last checkpoint
        are repeated."""
        self.hurry(id)
        self.until_state(**{id: "done"})
        assert {*self.computed(id)} == {*range(1, COUNT + 1)}
        assert (self.job(id).generation, self.job(id).losses) == (generations, 0)


@pytest.fixture
def on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SlurmSite]]:
    """Sites with their own Slurm."""
    if reason := missing():
        pytest.skip(reason)
    for name in ("slurm", "bin", "site"):
        (tmp_path / name).mkdir()
    slurm = Slurm(tmp_path / "slurm", {"n0": 2, "n1": 2})
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    for name in COMMANDS:
        real = shutil.which(name)
        (path := tmp_path / "bin" / name).write_text(
            COMMAND.format(folder=tmp_path / "bin", name=name, real=real)
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUSHARE_ADDRESS", "127.0.0.1")
    with maker(partial(SlurmSite, tmp_path / "site", slurm), close_without_slurm) as make:
        yield make
    slurm.end()


Makes = Callable[..., SlurmSite]


@row("the daemon of a job's node is killed, and comes back in time")
def node_daemon_killed(scene: Scene, on_slurm: Makes) -> float:
    site = on_slurm()
    site.begin("a", COUNT, STEP)
    site.kill(site.node("a"))
    since = scene.await_turn()
    site.steps()
    site.slurm.run("slurmd", "-N", site.node("a"))
    site.is_there("a")
    return since


@row("the daemon of a job's node is killed for good, and the job's processes are not")
def node_lost(scene: Scene, on_slurm: Makes) -> float:
    site = on_slurm()
    return site.moves(scene, site.kill, yields=0)


@row("the node of a job is drained")
def node_drained(scene: Scene, on_slurm: Makes) -> float:
    site = on_slurm()
    drain = partial(site.slurm.run, "scontrol", "update", "state=drain", "reason=it is hot")
    return site.moves(scene, lambda node: drain(f"nodename={node}"), yields=1)


@row("a job meets the time limit of its site, which is a minute", is_quick=False)
def time_limit(scene: Scene, on_slurm: Makes) -> float:
    return on_slurm("--time=1").moves(scene, None, yields=1)


@row("the controller of Slurm is killed while a job computes, and comes back")
def controller_killed(scene: Scene, on_slurm: Makes) -> float:
    site = on_slurm()
    site.begin("a", COUNT, STEP)
    site.slurm.save(f"gs.{site.journal.cluster()}.a.g1")
    site.answer_seconds = 1.0  # squeue waits for it for longer
    site.restart()
    site.kill("slurmctld")
    since = scene.await_turn()
    site.steps()
    assert site.state("a") in ("starting", "running")
    site.slurm.start_controller()
    site.until(lambda: not site.service.engine_trouble)
    site.steps()
    site.is_there("a")
    return since


@row("the controller of Slurm is killed, and has forgotten a job when it comes back")
def controller_forgets(scene: Scene, on_slurm: Makes) -> float:
    """The controller was killed before it had the job on disk, and reuses the job's number."""
    site = on_slurm()
    site.begin("a", COUNT, STEP)
    site.kill("slurmctld")
    since, there = scene.await_turn(), site.path.with_name("slurm") / "state"
    for path in there.glob("job_state*"):
        path.unlink()
    shutil.rmtree(there / "hash.0", ignore_errors=True)
    site.slurm.start_controller()
    site.until(lambda: site.job("a").generation > 1)
    for name in ("n0", "n1"):  # what an administrator does where Slurm has drained it
        site.slurm.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
    site.until(lambda: site.computes("a"))
    site.is_there("a", site.job("a").generation)
    return since


def spoiled_commands(scene: Scene, spoiled: tuple[str, ...], on_slurm: Makes) -> float:
    """A job computes, another one is submitted, and a third one is cancelled."""
    site = on_slurm()
    for id in ("a", "c"):
        site.begin(id, COUNT, STEP)
    site.answer_seconds = 1.0
    site.restart(sweep=1.0)
    with site.spoiled(*spoiled):
        site.submit("b", COUNT, STEP)
        site.service.cancel("c")
        since = scene.await_turn()
        site.steps()
        assert site.state("a") in ("starting", "running")
    site.until_state(c="cancelled")
    site.until(lambda: site.computes("b"))
    site.is_there("a")
    site.finish(b=COUNT)
    return since


rows(
    spoiled_commands,
    is_quick=True,
    mad_slurm=("all commands of Slurm print garbage for a while", ("is-mad", *COMMANDS)),
    mad_queue=("the queue of Slurm is garbage for a while", ("is-mad", "squeue")),
    mad_start=("Slurm starts jobs, and answers with garbage", ("is-mad", "sbatch")),
    hanging_queue=("the queue of Slurm does not answer for a while", ("hangs", "squeue")),
    hanging_start=("Slurm does not answer for a while whether a job starts", ("hangs", "sbatch")),
)
