"""Pairs of notebooks under `pack`: lanes chosen by themselves against one lane and against two.

A pair that gains by two lanes at once, since each sleeps half of its time as one does that waits
for its data, and a pair that may lose, since each keeps all cores busy. Real processes, real
trainings on the device `host`. Rounds of the three alternate, and each round of `auto` begins with
knowing nothing, so its trials are in its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from measure import Figure, broker, publish
from total import together
from training import Trainer, trainers

from jupyter_gpushare.client import Client
from jupyter_gpushare.protocol import SetPolicy

PAIRS = ("half_idle", "busy")
LANES = {"auto": 0, "one": 1, "two": 2}
ROUNDS = 3
ROUND_SECONDS = 40.0
WARM_UP_ITERATIONS = 50


def seconds(client: Client, started: list[Trainer], lanes: int, iterations: int) -> float:
    client.ask(SetPolicy(running_lanes=lanes))
    return together(started, iterations)


def measure(model: str) -> Iterator[Figure]:
    """Median ratios within a round: it is one machine's minute that they have in common."""
    with broker(policy="pack") as (settings, client), trainers(settings, [model] * 2) as started:
        seconds(client, started, 1, WARM_UP_ITERATIONS)
        pace = seconds(client, started, 1, WARM_UP_ITERATIONS) / WARM_UP_ITERATIONS
        iterations = round(ROUND_SECONDS / pace)
        rounds, found = [], []
        for _ in range(ROUNDS):
            times = {}
            for name, lanes in LANES.items():
                times[name] = seconds(client, started, lanes, iterations)
                if name == "auto":
                    found.append(client.look().devices[0].probation)
            rounds.append(times)
            print(model, {name: round(time, 2) for name, time in times.items()}, found[-1])
    yield Figure(f"{model}_two", statistics.median(each["one"] / each["two"] for each in rounds))
    yield Figure(
        f"{model}_auto_over_better",
        statistics.median(each["auto"] / min(each["one"], each["two"]) for each in rounds),
        target=1.03,
    )


def main() -> None:
    publish("probation", [figure for model in PAIRS for figure in measure(model)])


if __name__ == "__main__":
    main()
