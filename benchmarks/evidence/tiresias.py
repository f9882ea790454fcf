"""What Tiresias published (NSDI 2019), from this project's gangs in virtual time.

``python benchmarks/evidence/tiresias.py`` prints this section alone.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

import document
from document import NOTES, Published, Section, beside, spread, table

from jupyter_gpushare._core import Gang, GangRules, GangSimulation

# Devices and seconds; all there from the beginning, on two devices.
EXAMPLE = [Gang("1", 2, 2), Gang("2", 1, 8), Gang("3", 2, 6)]
SERVICE = [4.0, 8.0, 12.0]
OPEN = [*SERVICE[:-1], math.inf]

SEEDS = 100
GANGS = 300
HOSTS = [4] * 15
WIDTHS = {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.15, 16: 0.05}
LOAD = 0.9
MEDIAN_SECONDS = 600.0
SIGMA = 1.5
BOUND = 3600.0  # device-seconds
KNOB = 8.0


def mean_completion(
    gangs: Sequence[Gang], hosts: Sequence[int], policy: str, rules: GangRules
) -> float:
    simulation = GangSimulation(gangs, hosts, policy, rules)
    simulation.run()
    return statistics.fmean(
        each.ended - each.arrival for each in simulation.outcomes if each.ended is not None
    )


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


def gangs(seed: int) -> list[Gang]:
    """Lognormal durations; Poisson arrivals that keep 0.9 of the devices busy on average."""
    draw = random.Random(seed)
    seconds = MEDIAN_SECONDS * math.exp(SIGMA**2 / 2)
    width = sum(devices * part for devices, part in WIDTHS.items())
    gap = seconds * width / (LOAD * sum(HOSTS))
    made, arrival = [], 0.0
    for number in range(GANGS):
        devices = draw.choices(list(WIDTHS), list(WIDTHS.values()))[0]
        duration = MEDIAN_SECONDS * draw.lognormvariate(0, SIGMA)
        made.append(Gang(str(number), devices, duration, arrival=arrival))
        arrival += draw.expovariate(1 / gap)
    return made


def compared(seed: int) -> dict[str, float]:
    """Mean completion in minutes. The index knows the jobs of another seed, never its own."""
    known = sorted(each.devices * each.duration for each in gangs(seed + SEEDS))
    kinds = {
        "first come, first served": ("las", GangRules(thresholds=[math.inf], tick=0)),
        "2D-LAS, two queues": ("las", GangRules(thresholds=[BOUND], tick=0)),
        "2D-LAS, two queues, knob 8": ("las", GangRules(thresholds=[BOUND], knob=KNOB, tick=0)),
        "2D-Gittins, two queues": (
            "gittins",
            GangRules(thresholds=[BOUND], known=known, quantum=BOUND, tick=0),
        ),
        "SRSF, durations known": ("srsf", GangRules(tick=0)),
    }
    subject = gangs(seed)
    return {
        name: mean_completion(subject, HOSTS, policy, rules) / 60
        for name, (policy, rules) in kinds.items()
    }


def section(pool: Executor) -> Section:
    found = list(pool.map(compared, range(SEEDS)))
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
            "arrivals that keep 0.9 of the devices busy. The index knows the jobs of another seed. "
            "Stopping a job and going on cost nothing here, which flatters whoever stops often. "
            "Median over the seeds, and their 5th and 95th percentiles.",
            table(
                ("drawn jobs", "mean completion, minutes", "over SRSF"),
                [
                    (
                        name,
                        spread([each[name] for each in found]),
                        spread([each[name] / each["SRSF, durations known"] for each in found], 2),
                    )
                    for name in found[0]
                ],
            ),
        ],
        {},
    )


if __name__ == "__main__":
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        print(document.markdown(section(processes)))
