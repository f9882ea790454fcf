"""A service is killed at any moment, and started again. Nothing is lost, and nothing runs twice:
its jobs do not notice, and each of their iterations is computed once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpushare.cluster.engines.local import LocalEngine
from jupyter_gpushare.cluster.journal import Journal
from jupyter_gpushare.wire.jobs import LookAtUse

from ...makers import maker
from .serving import Wish, engine_of
from .work import generations, iterations, made

ROOT = Path(__file__).parents[3]
STEP = 0.02
COUNTS = {"long": 250, "short": 10}  # iterations
WISHES = [Wish("long", 4), Wish("short", 2, after=0.1)]
# Listed in the order in which they come.
POINTS = ("submitted", "start", "launched", "started", "computes", "ask", "yielded", "done")


class Killed:
    """A site whose service runs in a sequence of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        journal = Journal(path / "cluster.sqlite")
        self.cluster = journal.cluster()
        journal.close()
        for id, count in COUNTS.items():
            made(path / "jobs" / id, count, STEP)
        (path / "jobs.json").write_text(json.dumps(WISHES))

    def serve(self, point: str = "") -> int:
        """Run a service; return its exit status, 0 once all jobs have ended. Without a `point` the
        jobs hurry."""
        if not point:
            (self.path / "jobs" / "long" / "hurry").touch()
        command = [sys.executable, "-m", "tests.unit.cluster.serving", str(self.path)]
        return subprocess.run([*command, point], cwd=ROOT, check=False, timeout=120).returncode

    def check(self) -> None:
        journal = Journal(self.path / "cluster.sqlite")
        try:
            for id in COUNTS:
                self._check(journal, id)
        finally:
            journal.close()
        assert self.engine().adopt() == set()

    def _check(self, journal: Journal, id: str) -> None:
        directory, job = self.path / "jobs" / id, journal.job(id)
        assert job is not None
        assert (job.state, job.losses, job.sentence) == ("done", 0, "")
        assert iterations(generations(directory)) == [*range(1, COUNTS[id] + 1)]
        assert job.core["run"] == pytest.approx(COUNTS[id] * STEP)  # it is counted once
        used = {row.name: row for row in journal.uses(LookAtUse(0.0, 1e10, "job"), None)}[id]
        assert used.gpu_seconds == pytest.approx(COUNTS[id] * STEP * job.spec.gpus)
        assert all(path.name.endswith(".closed") for path in generations(directory))
        happened = Counter(event.what for event in journal.events(id))
        assert (happened["submitted"], happened["done"], happened["lost"]) == (1, 1, 0)
        assert happened["yielded"] == job.yields
        assert happened["start"] == job.generation

    def engine(self) -> LocalEngine:
        return engine_of(self.cluster)

    def close(self) -> None:
        for lease in self.engine().adopt():
            self.engine().kill(lease)


@pytest.fixture
def make_killed(tmp_path: Path) -> Iterator[Callable[[], Killed]]:
    numbers = itertools.count()
    with maker(lambda: Killed(tmp_path / str(next(numbers))), Killed.close) as make:
        yield make


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 40) | st.floats(0.01, 2.0), min_size=1, max_size=12))
def test_a_service_that_is_killed_at_any_moment_loses_nothing(
    make_killed: Callable[[], Killed], points: list[int | float]
) -> None:
    """It is killed before and after each write and act, and after some seconds. This includes
    moments between the launchers of a gang, between two files, and during the recovery."""
    killed = make_killed()
    for point in points:
        if killed.serve(str(point)) == 0:  # all were over before it
            break
    else:
        assert killed.serve() == 0
    killed.check()
