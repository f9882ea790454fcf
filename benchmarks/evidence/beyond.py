"""What Salus does not do: page idle notebooks out, and bound how often a large one is overtaken."""

from __future__ import annotations

import random
import statistics
from concurrent.futures import Executor
from functools import partial
from typing import Any

import document
import salus
from document import Section, picture, spread, table

from jupyter_gpushare import plots
from jupyter_gpushare._core import Cell, Conduct, Demand, Job
from jupyter_gpushare.simulation import run
from jupyter_gpushare.workload import Workload

SEEDS = salus.SEEDS
PAGING_RATE = 2e9  # bytes a second
NOTEBOOKS = 40
POLICIES = ("fair", "srtf")
STAYS = {"closed": 0.0, "stay": 3600.0}
CAPACITY = salus.CAPACITY


# --- paging out -----------------------------------------------------------------------------------


def notebooks(seed: int, stays: float) -> list[Job]:
    """Of drawn models: 2 to 8 cells of a minute in the median (lognormal, sigma 1), with pauses of
    5 minutes in the median (sigma 1) between; Poisson arrivals, one in 2 minutes. Each stays open
    so many seconds after its last cell."""
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
                user=str(number),
                arrival=arrival,
                demand=Demand(model.persistent, model.ephemeral),
                declares=True,
                stays=stays,
            )
        )
        arrival += draw.expovariate(1 / 120)
    return made


def paged(policy: str, stays: float, seed: int) -> tuple[float, float, float]:
    """Mean completion in minutes without and with paging, and GB paged out and in."""
    subject = Workload(notebooks(seed, stays), CAPACITY)
    without, with_paging = (
        run(subject, policy, salus.RULES(), Conduct(report=60.0, paging_rate=rate))
        for rate in (0.0, PAGING_RATE)
    )
    moved = sum(outcome.paged for outcome in with_paging.outcomes) / 1e9
    return (
        statistics.fmean(without.completion) / 60,
        statistics.fmean(with_paging.completion) / 60,
        moved,
    )


def paging(pool: Executor) -> Section:
    found = {
        f"{policy}, {words}": list(pool.map(partial(paged, policy, stays), range(SEEDS)))
        for words, stays in STAYS.items()
        for policy in POLICIES
    }
    gains = {name: [a / b for a, b, _ in rows] for name, rows in found.items()}
    return Section(
        "Past Salus: paging out idle notebooks",
        [
            f"{NOTEBOOKS} notebooks of the same models on 15,700 MiB, whose cells run a minute in "
            "the median with pauses of five minutes between, and which are closed at the end of "
            f"the last, or stay open for an hour. {SEEDS} seeds, {PAGING_RATE / 1e9:g} GB/s out "
            "and in. *Without* is "
            "admission as in Salus: who is open keeps its persistent memory. *With* is what the "
            "broker does: notebooks in which no cell runs are paged out when others need the room. "
            "Those that wait in the middle of a cell are not.",
            table(
                ("minutes", "mean completion, without", "with", "gain", "worse in", "GB moved"),
                [
                    (
                        name,
                        spread([a for a, _, _ in rows]),
                        spread([b for _, b, _ in rows]),
                        spread(gains[name], 2),
                        f"{sum(gain < 1 for gain in gains[name])} of {SEEDS} seeds",
                        spread([moved for _, _, moved in rows]),
                    )
                    for name, rows in found.items()
                ],
            ),
            picture("paging", "gain of paging over seeds"),
        ],
        {"paging": document.drawn(6, 3.0, 1, partial(_draw_paging, gains))},
    )


def _draw_paging(gains: dict[str, list[float]], axes: Any) -> None:
    for number, (name, values) in enumerate(gains.items()):
        plots.steps(axes, values, number, name)
    axes.axvline(1, color=plots.GREY, ls="--")
    axes.set(xlabel="mean completion, without over with paging", ylabel="part of the seeds")
    axes.legend()


# --- overtaking -----------------------------------------------------------------------------------

LARGE = 8 << 30
PATIENCES = (60.0, 1800.0, 3600.0, 5400.0, 7200.0, 9000.0, salus.FOREVER)


def overtaken(tail: float, seed: int) -> dict[float, tuple[float, float, float]]:
    """By patience: minutes of mean completion, and mean and longest wait of large ones over the
    mean of the others."""
    jobs = salus.jobs(seed, tail)
    found = {}
    for patience in PATIENCES:
        done = run(
            Workload(jobs, CAPACITY), "srtf", salus.RULES(patience=patience), salus.CONDUCT
        ).outcomes
        is_large = [job.demand.ephemeral > LARGE for job in jobs]
        large = [each.waited for each, size in zip(done, is_large, strict=True) if size]
        small = [each.waited for each, size in zip(done, is_large, strict=True) if not size]
        completion = statistics.fmean((each.ended or 0.0) - each.arrival for each in done)
        mean = statistics.fmean(small)
        found[patience] = (completion / 60, statistics.fmean(large) / mean, max(large) / 60)
    return found


def overtaking(pool: Executor) -> Section:
    found = {tail: list(pool.map(partial(overtaken, tail), range(SEEDS))) for tail in salus.TAILS}
    return Section(
        "Past Salus: bounded overtaking",
        [
            "The hundred jobs again, under `srtf`. Jobs of more than 8 GiB ephemeral are *large*: "
            "while smaller ones come and go there is seldom room. After `patience_seconds` "
            "of waiting nobody is admitted before them any more. The cost is in mean completion, "
            f"over no bound at all, for the same seed; median over {SEEDS} seeds, and their 5th "
            "and 95th percentiles.",
            *(_overtaking_table(tail, rows) for tail, rows in found.items()),
            _verdict(found),
        ],
        {},
    )


def _overtaking_table(tail: float, rows: list[dict[float, tuple[float, float, float]]]) -> str:
    head = (
        f"sigma {tail:g}, patience",
        "cost",
        "wait of large over small",
        "longest wait of a large one, minutes",
    )
    return table(
        head,
        [
            (
                "no bound" if patience == salus.FOREVER else f"{patience / 60:g} minutes",
                spread([row[patience][0] / row[salus.FOREVER][0] for row in rows], 2),
                spread([row[patience][1] for row in rows], 2),
                spread([row[patience][2] for row in rows], 0),
            )
            for patience in PATIENCES
        ],
    )


def _verdict(found: dict[float, list[dict[float, tuple[float, float, float]]]]) -> str:
    """For each tail, the shortest patience that keeps both promises in the median."""

    def keeps(patience: float, rows: list[dict[float, tuple[float, float, float]]]) -> bool:
        cost = statistics.median(row[patience][0] / row[salus.FOREVER][0] for row in rows)
        return cost < 1.1 and statistics.median(row[patience][1] for row in rows) < 4

    shortest = {
        tail: next((each for each in PATIENCES[:-1] if keeps(each, rows)), None)
        for tail, rows in found.items()
    }
    said = ", ".join(
        f"{'none of these' if patience is None else f'{patience / 60:g} minutes'} at sigma {tail:g}"
        for tail, patience in shortest.items()
    )
    return (
        "The shortest patience with which large jobs wait less than 4 times as long as small ones "
        f"at a cost below 10 %, in the median: {said}. The default of one minute is for notebooks, "
        "whose cells are short; jobs of this kind pay for it what the first row says, and a "
        "device for them has a higher `patience_seconds`."
    )
