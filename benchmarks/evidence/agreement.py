"""The same small workload through the simulator, and through a real broker with real processes."""

from __future__ import annotations

import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from measure import broker
from process import command

from evidence.document import Section, table
from jupyter_gpushare._core import Cell, Demand, Job
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.simulator.simulate import run
from jupyter_gpushare.simulator.workload import Workload

ITERATION_SECONDS = 0.05
POLICIES = ("fifo", "srtf", "fair", "las")
WARM = 10  # iterations, after which memory and duration are known
FIRST_SECONDS = 20.0  # in virtual time all are open and warm by then


class Notebook(NamedTuple):
    name: str
    begins: float  # seconds after the first one
    iterations: int


NOTEBOOKS = (
    Notebook("a", 0.0, 80),
    Notebook("b", 0.33, 120),
    Notebook("c", 0.72, 15),
    Notebook("d", 1.14, 35),
)
ALONE = (Notebook("alone", 0.0, 100),)


def work(socket: str, name: str, iterations: int) -> None:
    """A process that warms up, and then has one cell, which begins with a line on its input."""
    settings = load({}, socket=socket, device="host")
    session = Session(settings, name=name, remaining_iterations=WARM + iterations)
    session.open()
    train(session, WARM)
    print("warm", flush=True)
    sys.stdin.readline()
    train(session, iterations)
    print("done", flush=True)
    session.close()


def train(session: Session, iterations: int) -> None:
    """A cell."""
    session.cell_begins()
    for _ in range(iterations):
        session.enter()
        time.sleep(ITERATION_SECONDS)
        session.boundary()
    session.leave()
    session.cell_ends()


@contextmanager
def process(settings: Settings, notebook: Notebook) -> Iterator[subprocess.Popen[str]]:
    words = [settings.socket, notebook.name, str(notebook.iterations)]
    with subprocess.Popen(
        command("evidence.agreement", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started


def measured(policy: str, notebooks: Sequence[Notebook] = NOTEBOOKS) -> dict[str, float]:
    """Return seconds from the first cell to the end of each, in real time."""
    with broker(policy=policy) as (settings, _), ExitStack() as processes:
        started = {
            notebook.name: processes.enter_context(process(settings, notebook))
            for notebook in notebooks
        }
        began = time.monotonic()
        for notebook in notebooks:
            time.sleep(max(0.0, began + notebook.begins - time.monotonic()))
            pipe = started[notebook.name].stdin
            assert pipe is not None
            print(file=pipe, flush=True)
        return dict(sorted(_ends(started, began)))


def _ends(started: dict[str, subprocess.Popen[str]], began: float) -> Iterator[tuple[str, float]]:
    """Yield lines as they come: the process that writes first comes first."""
    with selectors.DefaultSelector() as selector:
        for name, each in started.items():
            assert each.stdout is not None
            selector.register(each.stdout, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                assert key.fileobj.readline() == "done\n"  # type: ignore[union-attr]
                yield key.data, time.monotonic() - began


def simulated(policy: str, iteration: float) -> dict[str, float]:
    """Return the same in virtual time. As with real processes, no session's memory is known before
    its first report."""
    jobs = [
        Job(
            notebook.name,
            [
                Cell(WARM, iteration),
                Cell(
                    notebook.iterations,
                    iteration,
                    FIRST_SECONDS - number - WARM * iteration + notebook.begins,
                ),
            ],
            user="u",
            arrival=float(number),
            demand=Demand(100 << 20, 0, measured=False),
            declares=True,
            stays=1e6,
        )
        for number, notebook in enumerate(NOTEBOOKS)
    ]
    done = run(Workload(jobs, 16 << 30), policy)
    return {outcome.id: (outcome.ended or 0.0) - FIRST_SECONDS for outcome in done.outcomes}


def section(pool: Executor) -> Section:
    rows, alike = [], 0
    apart: list[float] = []
    iteration = measured("fair", ALONE)["alone"] / ALONE[0].iterations
    for policy in POLICIES:
        real, virtual = measured(policy), simulated(policy, iteration)
        alike += sorted(real, key=real.__getitem__) == sorted(virtual, key=virtual.__getitem__)
        apart += [abs(real[name] / virtual[name] - 1) for name in real]
        rows += [
            (f"{policy}, {name}", f"{virtual[name]:.2f}", f"{real[name]:.2f}") for name in real
        ]
    return Section(
        "The simulator and the real broker",
        [
            f"{len(NOTEBOOKS)} processes with sessions of a real broker, and the same in virtual "
            f"time: {', '.join(str(each.iterations) for each in NOTEBOOKS)} iterations of "
            f"{ITERATION_SECONDS:g} s (they sleep, and one alone took {iteration:.4f} s for each), "
            f"begun at {', '.join(f'{each.begins:g}' for each in NOTEBOOKS)} s, all declared. The "
            f"order in which they ended was the same under {alike} of {len(POLICIES)} policies; "
            f"times differed by {statistics.median(apart):.1%} in the median and by "
            f"{max(apart):.1%} at most. These are real seconds, of a machine that may have had "
            "other work.",
            table(("ended after, seconds", "virtual", "real"), rows),
        ],
    )


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
