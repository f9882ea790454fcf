"""Other ways to share a device beside this project, in one run: real processes that train on this
machine.

``python benchmarks evidence --only compare`` writes this section alone. The exit status is 1 if one
of its promises is missed.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from measure import Figure
from process import command

from evidence import document
from evidence.contest.contest import (
    CELLS,
    COUNTS,
    GAP,
    ITERATIONS,
    LENGTHS,
    LIMITS,
    PERIOD_SECONDS,
    SHORT,
    SHORT_CELLS,
    SHORT_ITERATIONS,
    Run,
)
from evidence.contest.notebooks import Diary
from evidence.contest.ways import (
    IDLE,
    IN_LINE,
    ITERATION_SECONDS,
    LOCK,
    LOCK_FILE,
    OURS,
    QUANTUM,
    STOCK,
    WAYS,
    Way,
)
from evidence.document import Section, headlines, picture, table
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator import plots
from jupyter_gpushare.simulator.simulate import percentile

MIB = 1 << 20
# Promises: the largest ratio of our total to that of stock PyTorch at once, by the number of
# trainings; and, for the largest number, the same ratio of median short cells, and the largest part
# of the total in which no notebook computes.
MOST_OVER_STOCK = {2: 1.02, 4: 1.02, 8: 1.15}
MOST_OF_SHORT = 1.0
MOST_IDLE = 0.05


class Contest(NamedTuple):
    """One run; `load` is how many processes wanted a core before it began."""

    load: float
    runs: list[Run]

    def of(self, way: str, count: int, fits: bool) -> list[Run]:
        return [
            run for run in self.runs if (run.way, run.trainings, run.fits) == (way, count, fits)
        ]


def held() -> Contest:
    """Run in a process of its own, which imports PyTorch, and forks."""
    # Idle threads sleep. By default they spin and take cores from others, which would slow
    # processes that compute at the same time most.
    surroundings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        command("evidence.contest.contest"),
        env=surroundings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    return Contest(json.loads(done[0]), [*map(_run, done[1:])])


def _run(line: str) -> Run:
    read = Run(*json.loads(line))
    return read._replace(diaries={name: Diary(*diary) for name, diary in read.diaries.items()})


# --- figures of a run; times are in iterations ----------------------------------------------------


def total(run: Run) -> float:
    return max(diary.ended for diary in run.diaries.values()) / run.iteration


def trained(run: Run) -> list[Diary]:
    return [diary for name, diary in run.diaries.items() if name != SHORT]


def mean_completion(run: Run) -> float:
    return statistics.fmean(diary.ended for diary in trained(run)) / run.iteration


def longest_wait(run: Run) -> float:
    """Return the longest time of a training's cell without an iteration that ended."""
    return max(gap for diary in trained(run) for gap in gaps(diary)) / run.iteration


def gaps(diary: Diary) -> Iterator[float]:
    ends = [ended for _, ended in diary.iterations]
    for wanted, ended in diary.cells:
        marks = [wanted, *(end for end in ends if wanted < end <= ended)]
        yield from (after - before for before, after in pairwise(marks))


def latencies(runs: Iterable[Run]) -> list[float]:
    """Return the times of the short cells: from when each was wanted, to its end."""
    return [
        (ended - wanted) / run.iteration
        for run in runs
        if SHORT in run.diaries
        for wanted, ended in run.diaries[SHORT].cells
    ]


def over(contest: Contest, way: Way, other: Way, count: int) -> list[float]:
    """Return the total of a way over that of another one, for each round in which all fit."""
    pairs = zip(*(contest.of(each.name, count, True) for each in (way, other)), strict=False)
    return [
        total(one) / total(another) for one, another in pairs if trained(one) and trained(another)
    ]


def idle(run: Run) -> float:
    """Return the part of the total in which no notebook computes."""
    spans = sorted(span for diary in run.diaries.values() for span in diary.iterations)
    ends = accumulate((ended for _, ended in spans), max, initial=0.0)
    without = sum(max(0.0, began - before) for (began, _), before in zip(spans, ends, strict=False))
    return without / (total(run) * run.iteration)


def promises(contest: Contest) -> list[Figure]:
    """Return our promised figures, for notebooks that all fit. A figure that was not measured
    counts as missed."""
    failed = sum(len(run.failed) for count in COUNTS for run in contest.of(OURS.name, count, True))
    return [
        *(_total_over_stock(contest, count) for count in MOST_OVER_STOCK),
        *_beside_most(*(contest.of(way.name, COUNTS[-1], True) for way in (OURS, STOCK))),
        Figure("notebooks that failed", failed, target=0),
    ]


def _total_over_stock(contest: Contest, count: int) -> Figure:
    ratio = statistics.median(over(contest, OURS, STOCK, count) or [math.inf])
    name = f"{count} trainings: total over {STOCK.name}"
    return Figure(name, ratio, target=MOST_OVER_STOCK[count])


def _beside_most(ours: Sequence[Run], stock: Sequence[Run]) -> Iterator[Figure]:
    what = f"{COUNTS[-1]} trainings:"
    short, stocks = latencies(ours), latencies(stock)
    ratio = statistics.median(short) / statistics.median(stocks) if short and stocks else math.inf
    yield Figure(f"{what} median short cell over {STOCK.name}", ratio, target=MOST_OF_SHORT)
    part = statistics.median([*map(idle, ours)] or [math.inf])
    yield Figure(f"{what} part of the total in which none computes", part, target=MOST_IDLE)


# --- the section ----------------------------------------------------------------------------------

HEAD = (
    "total",
    "mean completion",
    "longest wait",
    "short cell, median",
    "95th percentile",
    "peak, MiB",
    "failed",
)


def row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    notebooks = sum(run.trainings + 1 for run in runs)
    failed = sum(len(run.failed) for run in runs)
    short = latencies(runs)
    return (
        name,
        *(_median(figure, [run for run in runs if trained(run)], 1) for figure in FIGURES),
        *(f"{percentile(short, part):.1f}" if short else "none" for part in (50, 95)),
        f"{max(run.peak for run in runs) / MIB:.0f}",
        f"**{failed} of {notebooks}**" if failed else "0",
    )


FIGURES = (total, mean_completion, longest_wait)


def _median(figure: Callable[[Any], float], runs: Sequence[Any], digits: int) -> str:
    return f"{statistics.median(map(figure, runs)):.{digits}f}" if runs else "none"


def tables(contest: Contest, fits: bool) -> Iterator[str]:
    for count in COUNTS:
        limit = contest.of(OURS.name, count, fits)[0].limit / MIB
        yield table(
            (f"{count} trainings, {limit:.0f} MiB", *HEAD),
            [row(way.name, contest.of(way.name, count, fits)) for way in WAYS],
        )


def over_one_at_a_time(contest: Contest) -> str:
    def ratio(way: Way, count: int) -> str:
        return _median(float, over(contest, way, IN_LINE, count), 2)

    head = ("total over one at a time", *(f"{count} trainings" for count in COUNTS))
    rows = [(way.name, *(ratio(way, count) for count in COUNTS)) for way in WAYS]
    return table(head, rows)


def promised(figures: Iterable[Figure]) -> str:
    head = ("promised, where they fit", "here", "at most")
    return table(head, [(each.name, _found(each), f"{each.target:g}") for each in figures])


def _found(figure: Figure) -> str:
    return f"{figure.value:.2f}{'' if figure.is_met else ': missed'}"


OUR_TURN = Settings().quantum_seconds / ITERATION_SECONDS
WHAT = (
    (STOCK.name, "no notebook waits for another"),
    (
        IN_LINE.name,
        "a notebook begins when the one before it is closed; the one with short cells comes last",
    ),
    (
        LOCK.name,
        f"as nvshare: a program waits in a queue, has the lock for {QUANTUM:g} iterations' "
        "time whatever it computes, is stopped between two layers of its model, and gives it back "
        f"when it has computed nothing for {IDLE:.1f} of them",
    ),
    (LOCK_FILE.name, "`flock` when a cell begins, until it ends"),
    (
        OURS.name,
        f"policy `{Settings().policy}`, turns of {OUR_TURN:.2f} iterations' time, which end at the "
        "next boundary of an iteration",
    ),
)


def section(pool: Executor) -> Section:
    contest = held()
    figures = promises(contest)
    rounds = contest.of(IN_LINE.name, COUNTS[0], True)
    pairs = over(contest, OURS, STOCK, COUNTS[0])
    alone = " and ".join(f"{run.iteration * 1000:.0f}" for run in rounds)
    return Section(
        "Beside what people use",
        [
            f"Real processes: {', '.join(map(str, COUNTS))} notebooks train a convolutional "
            "network on this machine's cores, each with as many threads as PyTorch takes, "
            f"{ITERATIONS} iterations in all, in {CELLS} cells each; the longest has "
            f"{max(LENGTHS) / min(LENGTHS):.1f} times as many as the shortest. One more notebook "
            f"runs {SHORT_CELLS} short cells of {SHORT_ITERATIONS} iterations on smaller batches, "
            "each wanted at a time of its own, whether or not the last has ended. The notebooks' "
            "code is the same in all ways:",
            table(("way", "what it is"), WHAT, others="---"),
            "Times are in iterations, by what one of a training takes alone just before (here "
            f"{alone} ms). The lock's quantum of 30 s is {QUANTUM:g} of them, as where one takes "
            f"{ITERATION_SECONDS:g} s; the 5 s after which it is given back, our turns of "
            f"{Settings().quantum_seconds:g} s and the first {Settings().boost_seconds:g} s of a "
            "cell, which we prefer, are to the same scale. A short cell is wanted each "
            f"{GAP} iterations.",
            "All have one limit on what their processes and our lane have together of private "
            f"memory since they were opened: {LIMITS[True]:g} times the sum of what each takes "
            f"alone at its peak, where they fit, and {LIMITS[False]:.2f} times, where they do "
            f"not. A watcher looks each {PERIOD_SECONDS * 1000:g} ms, and kills the process that "
            "has taken most, as Linux does where memory ends; so a peak is one that it saw. For "
            "us the limit is also the capacity of the device; the broker, one process of a host, "
            "counts nowhere. With nvshare on a GPU, the driver pages memory out to the host's, so "
            "programs that fail here would be slow there. "
            "And PyTorch keeps on a GPU what it has once had, where libc gives back most.",
            f"Medians of {len(rounds)} round{'s' * (len(rounds) > 1)}. In each round all ways run "
            "after one another; in every other round the notebooks come in the "
            "reverse order. Short cells, peaks and failures are of all rounds. Where all fit, "
            f"{STOCK.name}, and {OURS.name} ran once more in pairs, {len(pairs) - len(rounds)} "
            "times, and their figures are of all their runs. The longest wait "
            "is that of a training's cell for its next iteration to end. Where notebooks failed, "
            f"times are of those that were left. When all this began, {contest.load:.1f} other "
            "processes wanted this machine's cores; the more there are, the less do times say.",
            "They fit together:",
            *tables(contest, True),
            "They do not:",
            *tables(contest, False),
            "All of it, over one notebook at a time in the same round, where they fit:",
            over_one_at_a_time(contest),
            promised(figures),
            picture("compare", "short cells, peaks of memory and total times of the five ways"),
            headlines(in_readme(contest)),
        ],
        {"compare": document.drawn(9, 3.2, 3, partial(draw, contest))},
        figures,
    )


def in_readme(contest: Contest) -> list[tuple[str, str, str]]:
    """Return figures for the largest number of notebooks: memory, if they fit; else how many
    failed."""
    most = COUNTS[-1]
    others = [way for way in WAYS if way is not OURS]

    def peak(way: Way) -> str:
        runs = contest.of(way.name, most, True)
        return f"{max(run.peak for run in runs) / MIB:.0f} MiB"

    def failed(way: Way) -> str:
        runs = contest.of(way.name, most, False)
        return f"{sum(len(run.failed) for run in runs)} of {len(runs) * (most + 1)}"

    def beside(said: Callable[[Way], str]) -> str:
        return "; ".join(f"{way.name} {said(way)}" for way in others)

    return [
        (
            f"{most} trainings and a notebook of short cells, of small networks: peak of memory",
            peak(OURS),
            beside(peak),
        ),
        (
            f"the same, with {LIMITS[False]:.0%} of what all need at their peaks: failed",
            failed(OURS),
            beside(failed),
        ),
    ]


# --- the plot -------------------------------------------------------------------------------------


def draw(contest: Contest, short: Any, memory: Any, times: Any) -> None:
    """Draw short cells of all runs; peaks and total times by the number of trainings, where they
    fit."""
    for number, way in enumerate(WAYS):
        plots.steps(
            short, latencies(run for run in contest.runs if run.way == way.name), number, way.name
        )
        look = {
            "color": plots.COLOURS[number],
            "ls": plots.DASHES[number],
            "marker": "osv^D"[number],
            "clip_on": False,
        }
        runs = {count: contest.of(way.name, count, True) for count in COUNTS}
        peaks = [max(run.peak for run in runs[count]) / MIB for count in COUNTS]
        memory.plot(COUNTS, peaks, **look)
        times.plot(COUNTS, [statistics.median(map(total, runs[count])) for count in COUNTS], **look)
    short.set(xscale="log", xlabel="short cell, iterations", ylabel="part of them")
    memory.set(xlabel="trainings that fit together", ylabel="peak, MiB", ylim=0, xticks=COUNTS)
    times.set(
        xlabel="trainings that fit together", ylabel="total, iterations", ylim=0, xticks=COUNTS
    )
    short.figure.legend(*short.get_legend_handles_labels(), loc="outside lower center", ncols=3)
