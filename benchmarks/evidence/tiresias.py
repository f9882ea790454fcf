"""The figures that Tiresias published (NSDI 2019), from this project's gangs in virtual time.

``python benchmarks evidence.tiresias`` prints this section alone.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial

from evidence import document
from evidence.document import NOTES, Published, Section, beside, spread, table
from evidence.gangs import GangSimulation
from jupyter_gpushare._core import Gang, GangRules

# Devices and seconds; all jobs are there from the beginning, on two devices.
EXAMPLE = [Gang("1", 2, 2), Gang("2", 1, 8), Gang("3", 2, 6)]
SERVICE = [4.0, 8.0, 12.0]
OPEN = [*SERVICE[:-1], math.inf]

SEEDS = 100
GANGS = 480
HOSTS = [4] * 15
WIDTHS = {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.15, 16: 0.05}
LOADS = (0.9, 1.2)
RESUMES = (0.0, 30.0)
MEDIAN_SECONDS = 600.0
SIGMA = 1.5
BOUND = 3600.0  # device-seconds
KNOB = 8.0


def mean_completion(
    gangs: Sequence[Gang], hosts: Sequence[int], policy: str, rules: GangRules
) -> float:
    simulation = GangSimulation(gangs, hosts, policy, rules)
    simulation.run()
    return statistics.fmean(simulation.ended[each.id] - each.arrival for each in gangs)


def example(policy: str, **rules: Sequence[float] | float) -> str:
    return f"{mean_completion(EXAMPLE, [2], policy, GangRules(**rules)):.1f}"  # type: ignore[arg-type]


def published() -> str:
    rows = [
        ("SRSF, durations known", "9.3", example("srsf")),
        ("2D-Gittins", "10", example("gittins", known=OPEN, quantum=8)),
        ("2D-LAS", "11.7", example("las")),
    ]
    return beside(
        Published(f"{what}: mean completion", here, there, "Tiresias, example of three jobs", NOTES)
        for what, there, here in rows
    )


def variants() -> str:
    rows = [
        (f"2D-Gittins, {what}", *(example("gittins", known=known, quantum=q) for q in (4, 8, 12)))
        for what, known in (
            ("the longest job may last longer", OPEN),
            ("the longest job ends", SERVICE),
        )
    ]
    rows.append(
        (
            "2D-Gittins in two queues, bound 4, the longest job ends",
            *(example("gittins", known=SERVICE, quantum=q, thresholds=[4]) for q in (4, 8, 12)),
        )
    )
    rows.append(("2D-LAS in two queues, bound 4", *[example("las", thresholds=[4])] * 3))
    return table(("mean completion, quantum", "4", "8", "12"), rows)


def gangs(load: float, seed: int) -> list[Gang]:
    """Return jobs with lognormal durations and Poisson arrivals that ask for `load` of the
    devices."""
    draw = random.Random(seed)
    seconds = MEDIAN_SECONDS * math.exp(SIGMA**2 / 2)
    width = sum(devices * part for devices, part in WIDTHS.items())
    gap = seconds * width / (load * sum(HOSTS))
    made, arrival = [], 0.0
    for number in range(GANGS):
        devices = draw.choices(list(WIDTHS), list(WIDTHS.values()))[0]
        duration = MEDIAN_SECONDS * draw.lognormvariate(0, SIGMA)
        made.append(Gang(str(number), devices, duration, arrival=arrival))
        arrival += draw.expovariate(1 / gap)
    return made


def compared(load: float, resume: float, seed: int) -> dict[str, float]:
    """Return mean completion in minutes. The index knows the jobs of another seed, never
    its own."""
    known = [each.devices * each.duration for each in gangs(load, seed + SEEDS)]
    rules = partial(GangRules, tick=0, resume=resume)
    kinds = {
        "first come, first served": ("las", rules(thresholds=[math.inf])),
        "2D-LAS": ("las", rules(thresholds=[BOUND])),
        "2D-LAS, knob 8": ("las", rules(thresholds=[BOUND], knob=KNOB)),
        "2D-Gittins": ("gittins", rules(thresholds=[BOUND], known=known, quantum=BOUND)),
        "SRSF": ("srsf", rules()),
    }
    subject = gangs(load, seed)
    return {
        name: mean_completion(subject, HOSTS, policy, each) / 60
        for name, (policy, each) in kinds.items()
    }


def drawn(pool: Executor) -> str:
    columns = [
        list(pool.map(partial(compared, load, resume), range(SEEDS)))
        for load in LOADS
        for resume in RESUMES
    ]
    head = [f"load {load:g}, {resume:g} s to resume" for load in LOADS for resume in RESUMES]
    return table(
        ("mean completion, minutes", *head),
        [
            (name, *(spread([each[name] for each in column]) for column in columns))
            for name in columns[0][0]
        ],
    )


def section(pool: Executor) -> Section:
    return Section(
        "Gangs of whole devices",
        [
            "Jobs that take several whole devices at once, all of them or none, as Tiresias "
            "schedules them: by attained service, devices times seconds. Its example: two devices "
            "and three jobs of 2, 1 and 2 devices that last 2, 8 and 6 s; the order is looked at "
            "each second, without queues.",
            published(),
            "The index depends on what is known of the three jobs. Where the longest of them "
            "counts as one that may last longer, as it does in the simulator that the authors have "
            "published, and the quantum is 8 or more, it is 10. Where all three durations are "
            "taken as they are, a job that has run is always nearer its end than one that has not, "
            "so none is stopped and it is 9.3 as for SRSF, whatever the quantum; with queues it is "
            "10 again, but 2D-LAS then is as well.",
            variants(),
            f"Drawn jobs: {GANGS} for each of {SEEDS} seeds on 15 hosts of 4 devices, of 1 to 16 "
            f"devices each; durations lognormal with a median of 10 min and sigma {SIGMA}, Poisson "
            "arrivals whose work is the stated load times the capacity of all devices. Two queues, "
            "with a bound of one device-hour. The index knows the jobs of another seed, SRSF all "
            "durations. A job that was stopped takes the stated time to resume. "
            "Median over the seeds, and their 5th and 95th percentiles.",
            drawn(pool),
        ],
    )


if __name__ == "__main__":
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        print(document.markdown(section(processes)))
