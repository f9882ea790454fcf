"""Features that Salus does not have: paging notebooks out, and bounded backfill past a
large one."""

from __future__ import annotations

import random
import statistics
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from evidence import document, salus
from evidence.document import Section, picture, spread, table
from jupyter_gpushare import _core_testing
from jupyter_gpushare._core import Cell, Conduct, Demand, Job, Rules
from jupyter_gpushare.simulator import plots
from jupyter_gpushare.simulator.simulate import Run, run
from jupyter_gpushare.simulator.workload import Workload

SEEDS = salus.SEEDS
TARGET = 1.3
PAGING_RATE = 2e9  # bytes a second
NOTEBOOKS = 40
POLICIES = ("fair", "srtf")
STAYS = {"closed": 0.0, "stay": 3600.0}
JOB_POLICIES = ("srtf", "las")
CAPACITY = salus.CAPACITY
PAGES = Conduct(report=60.0, handover=0.0005, paging_rate=PAGING_RATE, remembers_turns=False)


# --- paging out -----------------------------------------------------------------------------------


def notebooks(seed: int, stays: float) -> list[Job]:
    """Notebooks with drawn models: 2 to 8 cells of a minute in the median (lognormal, sigma 1),
    with pauses of 5 minutes in the median (sigma 1) between; Poisson arrivals, one in 2 minutes.
    Each stays open for `stays` seconds after its last cell. All belong to one user, so that the
    policies differ."""
    draw = random.Random(seed)
    made, arrival = [], 0.0
    for number in range(NOTEBOOKS):
        model = draw.choice(salus.MODELS)
        cells = [
            Cell(
                max(1, round(draw.lognormvariate(4.1, 1) / model.iteration)),
                model.iteration,
                draw.lognormvariate(5.7, 1) if index else 0.0,
            )
            for index in range(draw.randint(2, 8))
        ]
        made.append(
            Job(
                str(number),
                cells,
                user="u",
                arrival=arrival,
                demand=Demand(model.persistent, model.ephemeral),
                declares=True,
                stays=stays,
            )
        )
        arrival += draw.expovariate(1 / 120)
    return made


class Paged(NamedTuple):
    """Mean completion in minutes without paging, with paging of idle sessions, and of waiting
    sessions as well; and the GB that the last one paged out and in."""

    without: float
    idle: float
    waiting: float
    moved: float


def completion(subject: Workload, policy: str, rules: Rules, conduct: Conduct) -> float:
    return salus.mean_minutes(run(subject, policy, rules, conduct).completion)


def paged(policy: str, stays: float, seed: int) -> Paged:
    subject = Workload(notebooks(seed, stays), CAPACITY)
    without, idle = (
        completion(subject, policy, salus.RULES(), Conduct(report=60.0, paging_rate=rate))
        for rate in (0.0, PAGING_RATE)
    )
    made = run(subject, policy, salus.RULES(page_waiting=True), PAGES)
    return Paged(without, idle, salus.mean_minutes(made.completion), moved(made))


def paged_jobs(policy: str, tail: float, seed: int) -> Paged:
    """The hundred jobs, in which no session is ever idle."""
    subject = Workload(salus.jobs(seed, tail), CAPACITY)
    without = completion(subject, policy, salus.RULES(aging=salus.FOREVER), salus.CONDUCT)
    made = run(subject, policy, salus.RULES(page_waiting=True), PAGES)
    return Paged(without, without, salus.mean_minutes(made.completion), moved(made))


def moved(of: Run) -> float:
    return sum(map(_core_testing.paged, of.outcomes)) / 1e9


def paging(pool: Executor) -> Section:
    found = {
        f"notebooks, {policy}, {words}": list(pool.map(partial(paged, policy, stays), range(SEEDS)))
        for words, stays in STAYS.items()
        for policy in POLICIES
    } | {
        f"jobs, {policy}, sigma {tail:g}": list(
            pool.map(partial(paged_jobs, policy, tail), range(SEEDS))
        )
        for policy in JOB_POLICIES
        for tail in salus.TAILS
    }
    gains = {name: [row.without / row.waiting for row in rows] for name, rows in found.items()}
    return Section(
        "Past Salus: paging out",
        [
            f"*Notebooks*: {NOTEBOOKS} of the same models on 15,700 MiB, whose cells run a minute "
            "in the median with pauses of five minutes between, and which are closed at the end of "
            "the last, or stay open for an hour. *Jobs*: the hundred of above, in which none is "
            f"ever idle. {SEEDS} seeds; {PAGING_RATE / 1e9:g} GB/s out and in, which each transfer "
            "has to itself. *Without* is "
            "admission as in Salus: an open job keeps its persistent memory. *Idle*: notebooks in "
            "which no cell runs are paged out when others need the room, as the broker does "
            "unless told otherwise. *Waiting*: those as well that wait for a turn in the middle of "
            "a cell (`page_waiting`), for one that the policy puts before them and that has waited "
            "for room for a minute. Mean completion in minutes; gains are over *without*. *Worse* "
            f"and *at least {TARGET:g}* count seeds, of {SEEDS}, by what *waiting* gains.",
            table(
                (
                    "",
                    "without",
                    "idle: gain",
                    "waiting: gain",
                    "worse",
                    f"at least {TARGET:g}",
                    "GB moved",
                ),
                [
                    (
                        name,
                        spread([row.without for row in rows]),
                        spread([row.without / row.idle for row in rows], 2),
                        spread(gains[name], 2),
                        str(sum(gain < 1 for gain in gains[name])),
                        str(sum(gain >= TARGET for gain in gains[name])),
                        spread([row.moved for row in rows]),
                    )
                    for name, rows in found.items()
                ],
            ),
            f"The aim is a gain of {TARGET:g} under `srtf`, where the shortest need not "
            f"wait for room: it is {_reached(gains)} Under `fair`, where everybody's turn comes "
            "often, those that wait change places again and again: much is moved, and next to "
            "nothing is gained over paging out idle ones alone. Under `las` jobs that are nearly "
            "alike go on side by side, and all end late: more room does not help them.",
            picture("paging", "gain of paging over seeds"),
        ],
        {"paging": document.drawn(6, 3.0, 1, partial(_draw_paging, gains))},
    )


def _reached(gains: dict[str, list[float]]) -> str:
    """Return a sentence: in how many rows the median reaches the target, and in how many runs."""
    rows = [values for name, values in gains.items() if "srtf" in name]
    medians = sum(statistics.median(values) >= TARGET for values in rows)
    seeds = sum(gain >= TARGET for values in rows for gain in values)
    runs = len(rows) * SEEDS
    return f"reached by the median of {medians} of {len(rows)} rows, and by {seeds} of {runs} runs."


def _draw_paging(gains: dict[str, list[float]], axes: Any) -> None:
    shown = {name: values for name, values in gains.items() if "srtf" in name}
    for number, (name, values) in enumerate(shown.items()):
        plots.steps(axes, values, number, name)
    axes.axvline(1, color=plots.GREY, ls="--")
    axes.set(xlabel="mean completion, without over with paging", ylabel="part of the seeds")
    axes.set_xlim(0.5, 8)
    axes.legend()


# --- backfill -------------------------------------------------------------------------------------

LARGE = 8 << 30
RATIO, COST = 4.0, 1.1
AGING_TIMES = (60.0, 1800.0, 3600.0, 5400.0, 7200.0, salus.FOREVER)


class Overtaken(NamedTuple):
    """Mean completion in minutes; mean wait of large jobs over that of the others; longest wait of
    a large job in minutes."""

    completion: float
    ratio: float
    longest: float


def bounds() -> dict[str, tuple[Rules, Conduct]]:
    waits = {
        "no bound" if each == salus.FOREVER else f"{each / 60:g} minutes": each
        for each in AGING_TIMES
    }
    made = {name: (salus.RULES(aging=each), salus.CONDUCT) for name, each in waits.items()}
    return made | {
        f"{name}, those that wait page out": (
            salus.RULES(aging=waits[name], page_waiting=True),
            PAGES,
        )
        for name in ("1 minutes", "30 minutes")
    }


def overtaken(tail: float, seed: int) -> dict[str, Overtaken]:
    jobs = salus.jobs(seed, tail)
    return {
        name: _overtaken(run(Workload(jobs, CAPACITY), "srtf", rules, conduct), jobs)
        for name, (rules, conduct) in bounds().items()
    }


def _overtaken(of: Run, jobs: list[Job]) -> Overtaken:
    is_large = [job.demand.ephemeral > LARGE for job in jobs]
    large = [each.waited for each, size in zip(of.outcomes, is_large, strict=True) if size]
    small = [each.waited for each, size in zip(of.outcomes, is_large, strict=True) if not size]
    completion = salus.mean_minutes(of.completion)
    return Overtaken(completion, statistics.fmean(large) / statistics.fmean(small), max(large) / 60)


def overtaking(pool: Executor) -> Section:
    found = {tail: list(pool.map(partial(overtaken, tail), range(SEEDS))) for tail in salus.TAILS}
    return Section(
        "Past Salus: bounded backfill",
        [
            "The hundred jobs again, under `srtf`. Jobs of more than 8 GiB ephemeral are *large*: "
            "while smaller ones come and go there is seldom room. After `aging_seconds` "
            "of waiting no job is admitted before them any more; or, with `page_waiting`, those "
            "that wait for a turn page out for those that come before them. The cost is in mean "
            "completion, over no bound at all, for the same seed, and below 1 a gain; median over "
            f"{SEEDS} seeds, and their 5th and 95th percentiles. The aim is that large ones "
            f"wait less than {RATIO:g} times as long as small ones at a cost below {COST - 1:.0%}: "
            f"*both kept* counts the seeds, of {SEEDS}, in which that is so.",
            *(_overtaking_table(tail, rows) for tail, rows in found.items()),
            _verdict(found),
        ],
    )


def _costs(name: str, rows: list[dict[str, Overtaken]]) -> list[float]:
    return [row[name].completion / row["no bound"].completion for row in rows]


def _keeps(row: dict[str, Overtaken], name: str) -> bool:
    return row[name].ratio < RATIO and row[name].completion < COST * row["no bound"].completion


def _overtaking_table(tail: float, rows: list[dict[str, Overtaken]]) -> str:
    head = (
        f"sigma {tail:g}, aging",
        "cost",
        "wait of large over small",
        "both kept",
        "longest wait of a large one, minutes",
    )
    return table(
        head,
        [
            (
                name,
                spread(_costs(name, rows), 2),
                spread([row[name].ratio for row in rows], 2),
                str(sum(_keeps(row, name) for row in rows)),
                spread([row[name].longest for row in rows], 0),
            )
            for name in bounds()
        ],
    )


PAGED = "1 minutes, those that wait page out"


def _verdict(found: dict[float, list[dict[str, Overtaken]]]) -> str:
    """Return sentences: which aging achieves both in most seeds without paging, and how the default
    does with paging."""

    def kept(name: str, rows: list[dict[str, Overtaken]]) -> int:
        return sum(_keeps(row, name) for row in rows)

    bounded = [name for name in bounds() if name.endswith("minutes")]
    best = {tail: max(bounded, key=lambda name: kept(name, rows)) for tail, rows in found.items()}
    said = ", ".join(
        f"{name} at sigma {tail:g} ({kept(name, found[tail])} of {SEEDS} seeds)"
        for tail, name in best.items()
    )
    all_rows = [row for rows in found.values() for row in rows]
    worst = max(cost for rows in found.values() for cost in _costs(PAGED, rows))
    return (
        f"Where none pages out, both are kept most often by {said}. Where those that wait page "
        f"out, by the default of one minute, in {kept(PAGED, all_rows)} of {len(all_rows)} runs; "
        f"its mean completion is at most {worst:.2f} of that without a bound in any of them. A "
        "device that keeps them in, for jobs of this kind, has a higher `aging_seconds`: the "
        "default is for notebooks, whose cells are short."
    )
