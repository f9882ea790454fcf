"""The figures that Salus published (MLSys 2020), from this project's scheduler in virtual time."""

from __future__ import annotations

import csv
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from measure import jain

from evidence import document
from evidence.document import (
    DATA,
    NOTES,
    READ,
    Published,
    Section,
    beside,
    headlines,
    picture,
    spread,
    table,
)
from jupyter_gpushare._core import Cell, Conduct, Demand, Host, Job, Rules, SessionSpec, Simulation
from jupyter_gpushare.simulator import plots, workload
from jupyter_gpushare.simulator.simulate import Run, percentile, run
from jupyter_gpushare.simulator.workload import MEBIBYTE, Workload

SEEDS = 100
JOBS = 100
POLICIES = ("fifo", "srtf", "pack", "fair", "las")
TAILS = (1.0, 1.5, 2.0)
CAPACITY = 15_700 * MEBIBYTE
MAKESPAN_SECONDS = 303.4 * 60  # one after the other, as published
GAP_SECONDS = 10.0
FOREVER = 1e9
GB = 10**9
MODELS = workload.models(DATA / "salus_mem_baseline.csv", DATA / "salus_workloads.csv")
# Jobs last minutes, so turns of ten seconds. Iterations of a job all last equally long, so that
# infrequent reports say as much as frequent ones.
RULES = partial(Rules, quantum=10.0)
CONDUCT = Conduct(report=60.0, handover=0.0005, remembers_turns=False)


class Result(NamedTuple):
    """Figures of one run, in minutes; `peak` is a part of the capacity."""

    completion: float
    completion_p95: float
    queueing: float
    makespan: float
    peak: float


def jobs(seed: int, tail: float) -> list[Job]:
    """Return 100 training jobs of drawn models. Durations are lognormal with sigma `tail`, scaled
    so that one after the other they take as long as published; arrivals are Poisson, one in 10 s.
    """
    draw = random.Random(seed)
    lengths = [draw.lognormvariate(0, tail) for _ in range(JOBS)]
    scale = MAKESPAN_SECONDS / sum(lengths)
    return workload.of_models(
        MODELS, [scale * each for each in lengths], seed=seed, gap=GAP_SECONDS
    )


def mean_minutes(seconds: Sequence[float]) -> float:
    return statistics.fmean(seconds) / 60


def result(of: Run) -> Result:
    return Result(
        mean_minutes(of.completion),
        percentile(of.completion, 95) / 60,
        mean_minutes(of.queueing),
        of.makespan / 60,
        of.peak_bytes / CAPACITY,
    )


def hundred_jobs(tail: float, seed: int) -> dict[str, Result]:
    """Run under each policy, with unbounded backfill as in Salus."""
    subject = Workload(jobs(seed, tail), CAPACITY)
    return {
        policy: result(run(subject, policy, RULES(aging=FOREVER), CONDUCT)) for policy in POLICIES
    }


def trace(pool: Executor) -> Section:
    found = {tail: list(pool.map(partial(hundred_jobs, tail), range(SEEDS))) for tail in TAILS}
    ratios = {
        tail: [each["fifo"].completion / each["srtf"].completion for each in results]
        for tail, results in found.items()
    }
    peaks = [each[policy].peak for rows in found.values() for each in rows for policy in each]
    worst, above = max(peaks), sum(peak > 1 for peak in peaks)
    shown = run(Workload(jobs(0, 1.5), CAPACITY), "pack", RULES(aging=FOREVER), CONDUCT)
    return Section(
        "A hundred training jobs",
        [
            f"{JOBS} jobs of the {len(MODELS)} training models in both published tables, of "
            "memory and of seconds per iteration, on one device of 15,700 MiB. How long jobs take "
            "is not in the tables: lognormal, with three tails (sigma 1, 1.5 and 2), scaled so "
            f"that one after the other they take the published 303.4 minutes. {SEEDS} seeds for "
            "each tail, none left out. Turns of 10 s, a report each minute. One lane runs at a "
            "time; under `pack` more are tried, which share the device's speed here and gain "
            "nothing, the worst case for `pack`. Backfill is unbounded here, as in Salus. "
            "Minutes: median over the seeds, and their 5th and 95th percentiles.",
            *(_table(tail, results) for tail, results in found.items()),
            "Mean completion under `fifo` over that under `srtf`:",
            beside(
                Published(
                    f"sigma {tail:g}",
                    spread(values, 2),
                    "3.19",
                    "Salus, 100-job trace",
                    READ,
                )
                for tail, values in ratios.items()
            ),
            "The trace is not public, so its tail is not known; the ratio depends on the tail as "
            "much as on the scheduler. Of the single published run:",
            beside(_published(found[1.5])),
            picture("trace", "distributions over seeds"),
            f"The capacity was exceeded in {above} of {len(peaks)} runs; the "
            f"most that was ever promised is {worst:.4f} of it. One of them over time:",
            picture("memory", "memory over time, below the capacity"),
            headlines(
                [
                    (
                        "a hundred training jobs in virtual time: mean completion under `fifo` over"
                        f" `srtf`, for tails of sigma {', '.join(f'{tail:g}' for tail in TAILS)}",
                        ", ".join(spread(values, 2) for values in ratios.values()),
                        "3.19 in the paper, of one trace whose tail is not known",
                    )
                ]
            ),
        ],
        {
            "trace": document.drawn(9, 3.2, 2, partial(_draw, found[1.5], ratios)),
            "memory": document.drawn(9, 3.2, 1, partial(_draw_memory, shown)),
        },
    )


def _table(tail: float, results: list[dict[str, Result]]) -> str:
    head = (f"sigma {tail:g}", "mean completion", "95th percentile", "mean queueing", "makespan")
    return table(
        head,
        [
            (policy, *(spread([each[policy][column] for each in results]) for column in range(4)))
            for policy in POLICIES
        ],
    )


def _published(results: list[dict[str, Result]]) -> list[Published]:
    def row(policy: str, figure: str, there: str) -> Published:
        values = [getattr(each[policy], figure) for each in results]
        name = {"makespan": "makespan", "completion": "mean completion"}[figure]
        what = f"{policy}: {name}, minutes (sigma 1.5)"
        return Published(what, spread(values), there, "Salus, 100-job trace", NOTES)

    return [
        row("fifo", "completion", "170.6"),
        row("srtf", "completion", "53.4"),
        row("fair", "completion", "96.6"),
        row("fifo", "makespan", "303.4"),
        row("srtf", "makespan", "306.0"),
        row("pack", "makespan", "287.4"),
    ]


def _draw(results: list[dict[str, Result]], ratios: dict[float, list[float]], *axes: Any) -> None:
    left, right = axes
    for number, policy in enumerate(POLICIES):
        plots.steps(left, [each[policy].completion for each in results], number, policy)
    left.set(xlabel="mean completion, minutes (sigma 1.5)", ylabel="part of the seeds")
    left.legend()
    for number, (tail, values) in enumerate(ratios.items()):
        plots.steps(right, values, number, f"sigma {tail:g}")
    right.axvline(3.19, color=plots.GREY, ls="--", label="published")
    right.set(xlabel="mean completion, fifo over srtf")
    right.legend()


def _draw_memory(shown: Run, axes: Any) -> None:
    plots.memory(axes, shown, CAPACITY)


# --- packing --------------------------------------------------------------------------------------


def memory_table() -> dict[str, tuple[float, float]]:
    """Return persistent and ephemeral MiB of each row."""
    with (DATA / "salus_mem_baseline.csv").open(newline="") as file:
        return {
            row["Network"]: (float(row["Persistent Mem (MB)"]), float(row["Peak"]))
            for row in csv.DictReader(file)
        }


def padded(persistent: float, ephemeral: float) -> Demand:
    """Return the demand as Salus's code pads it."""
    kept = persistent * 1.1
    total = (kept + ephemeral) * 1.05
    return Demand(round(kept * MEBIBYTE), round((total - kept) * MEBIBYTE))


def lanes_of(name: str) -> int:
    """Return how many jobs of one kind have a lane each."""
    host = Host([("device", CAPACITY)], "fair", Rules(running_lanes=ALL))
    spec = SessionSpec("u", demand=padded(*memory_table()[name]))
    number = 0
    while len(host.snapshot("device", 0).lanes) == number:
        host.open(0, str(number), ["device"], spec)
        number += 1
    return number - 1


def gain(name: str, load: float, most: int = 28) -> float:
    """Return how many jobs there are lanes for, but no more than `most`."""
    return gain_of(name, load, min(most, lanes_of(name)))


ALL = 1_000  # lanes at once: as many as memory allows


def gain_of(
    name: str, load: float, count: int, *, lanes: int = ALL, aging: float = FOREVER
) -> float:
    """Return the makespan of `count` equal jobs one after the other, over that of packing them.

    The defaults are those of Salus: as many run at once as memory allows, and the others are kept
    out.
    """
    demand = padded(*memory_table()[name])
    same = [
        Job(str(i), [Cell(600, 0.1)], user=str(i), demand=demand, load=load) for i in range(count)
    ]
    packed = run(Workload(same, CAPACITY), "pack", Rules(running_lanes=lanes, aging=aging))
    alone = run(Workload(same, CAPACITY), "fifo", Rules())
    return alone.makespan / packed.makespan


def found_gain(name: str, load: float) -> float:
    """Return the same, if `pack` has to find out how many lanes help."""
    return gain_of(name, load, min(28, lanes_of(name)), lanes=0)


LOADS = (0.05, 0.1, 0.2, 0.3, 0.42, 0.5, 0.7, 0.93, 1.0)
SETS = {"vae_64": 574, "superres_128": 14, "resnet50_50": 2}


def packing(pool: Executor) -> Section:
    gains = {name: list(pool.map(partial(gain, name), LOADS)) for name in SETS}
    at = {name: dict(zip(LOADS, values, strict=True)) for name, values in gains.items()}
    admitted, bytes_promised = inference()
    found = {name: list(pool.map(partial(found_gain, name), LOADS)) for name in SETS}
    crowded, by_default = (
        gain_of("resnet50_50", 0.42, 28, aging=aging) for aging in (FOREVER, Rules().aging)
    )
    return Section(
        "Packing",
        [
            "Equal jobs of a hyper-parameter search: how many get a lane of their own on 15,700 "
            "MiB, with demands padded as Salus's code pads them.",
            beside(
                Published(
                    name,
                    str(lanes_of(name)),
                    str(count),
                    "worked out by Salus's rules and padding",
                    "computed",
                )
                for name, count in SETS.items()
            ),
            "What that gains depends on how busy one job alone keeps the device, its *load*, which "
            "no table tells: lanes gain at most 1 / load, and no more than there are lanes. So the "
            "simulator cannot reproduce published gains; it says what load they correspond to.",
            table(
                ("makespan, one after the other over packed", *(f"load {x:g}" for x in LOADS)),
                [(name, *(f"{value:.2f}" for value in values)) for name, values in gains.items()],
            ),
            "As many jobs as there are lanes, at most 28, and all lanes at once (`running_lanes`). "
            f"With 28 of resnet50_50 at load 0.42 it is {crowded:.2f}, while a job that "
            "would leave room for fewer lanes is not admitted, as in Salus. With the default "
            "`aging_seconds` of a minute, which is for notebooks, it is "
            f"{by_default:.2f}: jobs that have waited for a minute are admitted, and lanes merge.",
            "Where `running_lanes` is 0, `pack` has to find out how many lanes help: it measures "
            "each job alone first, and then two lanes, four, eight, for as long as more is done.",
            table(
                ("the same, lanes found by the tuner", *(f"load {x:g}" for x in LOADS)),
                [(name, *(f"{value:.2f}" for value in values)) for name, values in found.items()],
            ),
            beside(
                [
                    Published(
                        "superres_128 at load 0.42",
                        f"{at['superres_128'][0.42]:.2f}",
                        "2.38",
                        "Salus, hyper-parameter search",
                        READ,
                    ),
                    Published(
                        "resnet50_50 at load 0.93",
                        f"{at['resnet50_50'][0.93]:.2f}",
                        "1.07",
                        "Salus, hyper-parameter search",
                        NOTES,
                    ),
                ]
            ),
            f"Inference: 14 models, three sessions of each, batch 1. {admitted} of 42 have a place "
            f"on one device of 16 GB, with {bytes_promised / GB:.1f} GB promised in one lane.",
            beside(
                [
                    Published(
                        "devices for 42 inference sessions",
                        "1" if admitted == 42 else "more than 1",
                        "1 (6 with MPS, 42 without sharing)",
                        "Salus, inference",
                        READ,
                    )
                ]
            ),
            picture("packing", "gain of packing by load"),
        ],
        {"packing": document.drawn(6, 3.2, 1, partial(_draw_packing, gains))},
    )


def _draw_packing(gains: dict[str, list[float]], axes: Any) -> None:
    for number, (name, values) in enumerate(gains.items()):
        axes.plot(
            LOADS,
            values,
            label=name,
            color=plots.COLOURS[number],
            ls=plots.DASHES[number],
            marker="os^"[number],
        )
    axes.set(xlabel="load of one job", ylabel="gain in makespan", yscale="log")
    axes.legend()


def inference() -> tuple[int, int]:
    """Return how many sessions are admitted when all are open, and bytes promised."""
    host = Host([("device", 16 * GB)], "fair", Rules(running_lanes=1))
    names = [name for name in memory_table() if name.endswith("eval_1")]
    assert len(names) == 14
    for copy in range(3):
        for name in names:
            persistent, ephemeral = memory_table()[name]
            demand = Demand(round(persistent * 1.1 * MEBIBYTE), round(ephemeral * MEBIBYTE))
            host.open(0, f"{name}-{copy}", ["device"], SessionSpec("u", demand=demand))
    device_snapshot = host.snapshot("device", 0)
    admitted = sum(session.lane is not None for session in device_snapshot.sessions)
    return admitted, device_snapshot.capacity - device_snapshot.free


# --- fairness and deadlock ------------------------------------------------------------------------

COMERS, APART, WINDOW = 6, 120.0, 20.0


def windows(seed: int) -> list[tuple[float, list[float]]]:
    """Return the end of each window, and the part of it that each session had that was open
    throughout."""
    draw = random.Random(seed)
    comers = [
        Job(
            str(number),
            [Cell(10**6, draw.uniform(0.02, 0.6))],
            user=str(number),
            arrival=number * APART,
            demand=Demand(GB // 2, GB),
        )
        for number in range(COMERS)
    ]
    simulation = Simulation(comers, 16 * GB, "fair")
    rows: list[tuple[float, list[float]]] = []
    before = [0.0] * COMERS
    for index in range(1, int(COMERS * APART / WINDOW) + 1):
        end = index * WINDOW
        simulation.run(end)
        now = [outcome.device_seconds for outcome in simulation.outcomes]
        there = [i for i in range(COMERS) if comers[i].arrival <= end - WINDOW]
        rows.append((end, [(now[i] - before[i]) / WINDOW for i in there]))
        before = now
    return rows


def sharing(pool: Executor) -> Section:
    found = list(pool.map(windows, range(SEEDS)))
    indices = [jain(parts) for rows in found for _, parts in rows if len(parts) > 1]
    stuck, ended = naive(), lanes_finish()
    return Section(
        "Fairness, and a deadlock",
        [
            f"{COMERS} users with one notebook each under `fair`, which come {APART:g} s apart and "
            "whose iterations last 0.02 to 0.6 s, drawn again for each of "
            f"{SEEDS} seeds. Jain's index of the device time of the users that are there, in each "
            f"window of {WINDOW:g} s; turns have the default quarter of a second.",
            table(
                ("", "least", "5th percentile", "median"),
                [
                    (
                        f"Jain's index, {len(indices)} windows",
                        f"{min(indices):.3f}",
                        f"{percentile(indices, 5):.3f}",
                        f"{statistics.median(indices):.4f}",
                    )
                ],
            ),
            "Published: 20 jobs share evenly (Salus, in the paper), without an index.",
            picture("fairness", "parts of the device over time with late comers"),
            "Two jobs of 1 GB persistent and 7 GB ephemeral on 12 GB. Where memory is taken step "
            f"by step, a GB at a time in turn, both stand still with {stuck[0]} and {stuck[1]} of "
            "the 8 GB that each needs, and nothing is free. Here the same two have one lane, and "
            f"both have finished, after {ended[0]:.0f} and {ended[1]:.0f} s (alone: 10 s each).",
        ],
        {"fairness": document.drawn(9, 3.0, 1, partial(_draw_fairness, found[0]))},
    )


def _draw_fairness(rows: list[tuple[float, list[float]]], axes: Any) -> None:
    for number in range(COMERS):
        points = [(end, parts[number]) for end, parts in rows if len(parts) > number]
        axes.step(
            [end / 60 for end, _ in points],
            [part for _, part in points],
            color=plots.COLOURS[number],
            ls=plots.DASHES[number],
            label=f"notebook {number + 1}",
            where="pre",
        )
    axes.set(xlabel="minutes, seed 0", ylabel="part of the device", ylim=(0, 1.05))
    axes.legend(ncols=2)


def naive(capacity: int = 12, needs: int = 8) -> tuple[int, int]:
    """Return the GB of two sessions that take one GB in turn until nothing is free or both have
    all."""
    has = [1, 1]  # persistent
    while sum(has) < capacity and min(has) < needs:
        poorer = has.index(min(has))
        has[poorer] += 1
    return has[0], has[1]


def lanes_finish() -> list[float]:
    two = [Job(id, [Cell(100, 0.1)], user=id, demand=Demand(GB, 7 * GB)) for id in "ab"]
    return [outcome.ended or 0.0 for outcome in run(Workload(two, 12 * GB), "fair").outcomes]
