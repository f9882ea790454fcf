"""Parts that the benchmarks share: a broker of their own, comparisons in turn, samples, statistics,
and one table of results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Shutdown

RESULTS = Path(__file__).resolve().parent.parent / "build" / "bench.json"
NO_SLEEP = "/dev/cpu_dma_latency"  # for root alone
Way = TypeVar("Way")


def machine() -> dict[str, object]:
    """Return what a reader must know to read the figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "jupyter_gpushare": version("jupyter_gpushare"),
    }


@dataclass(frozen=True)
class Figure:
    """One measured number. `target` is the promise, if any: at most (or `at_least`) this value."""

    name: str
    value: float
    unit: str = ""
    target: float | None = None
    at_least: bool = False

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@contextmanager
def broker(device: str = "host", **settings: object) -> Iterator[tuple[Settings, Client]]:
    """Start a broker of our own and connect to it; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        chosen = load(
            {},
            socket=f"{home}/broker.sock",
            accounts=f"{home}/accounts.sqlite",
            device=device,
            **settings,
        )
        with Client.connect(chosen, "benchmark") as client:
            yield chosen, client
        with Client.connect(chosen, "benchmark") as client:  # the first may have ended
            client.ask(Shutdown())


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep cores from sleeping within the block, where this process may; else say that they may."""
    with ExitStack() as opened:
        try:
            latency = opened.enter_context(open(NO_SLEEP, "wb", buffering=0))
            latency.write((0).to_bytes(4, sys.byteorder))
        except OSError as error:
            print(f"the cores may sleep: {error}", file=sys.stderr)
        yield


def in_turn(
    subject: Callable[[], float], reference: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Measure both in turn, so that a change of the machine's pace falls on both. Return the values
    of the reference, and the ratio of each value of the subject to the mean of those before and
    after it."""
    references, ratios = [reference()], []
    for _ in range(pairs):
        value = subject()
        references.append(reference())
        ratios.append(2 * value / (references[-2] + references[-1]))
    return references, ratios


def rotated(ways: Sequence[Way], by: int) -> list[Way]:
    """Rotate the order, so that no way always comes first on a machine whose pace changes."""
    first = by % len(ways)
    return [*ways[first:], *ways[:first]]


@contextmanager
def sampled(size: Callable[[], int], pause: float = 0.0) -> Iterator[list[int]]:
    """Collect values of `size` during the block, in a thread, with `pause` seconds between them."""
    samples = [size()]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(pause):
            samples.append(size())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def jain(shares: Iterable[float]) -> float:
    """Return Jain's fairness index: 1 when all have the same, 1/n when one has all."""
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` of `values` do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def publish(benchmark: str, figures: Sequence[Figure]) -> int:
    """Print `figures`; their values go to build/bench.json, the promises among them beside it.
    Return the exit status of the benchmark: 1 where a promise is missed."""
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[benchmark] = {figure.name: figure.value for figure in figures}
    results.setdefault("promises", {})[benchmark] = {
        figure.name: {"target": figure.target, "met": figure.is_met}
        for figure in figures
        if figure.target is not None
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    Console().print(table(benchmark, figures))
    return int(any(figure.is_met is False for figure in figures))


def table(benchmark: str, figures: Sequence[Figure]) -> Table:
    drawn = Table("figure", "measured", "target", "met", title=benchmark, title_justify="left")
    for figure in figures:
        bound = (
            ""
            if figure.target is None
            else f"{'>=' if figure.at_least else '<='} {figure.target:g}"
        )
        met = {None: "", True: "yes", False: "[red]no"}[figure.is_met]
        drawn.add_row(figure.name, f"{figure.value:.4g} {figure.unit}", bound, met)
    return drawn
