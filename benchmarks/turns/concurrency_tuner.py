"""Pairs of notebooks under `pack`: the concurrency tuner against one lane and against two.

The first pair gains by two lanes at once, since each notebook sleeps half of its time, as if it
waited for its data. In the second pair each notebook keeps all cores busy. The third pair does so
with OpenMP threads that spin, as they do if torch was imported before sharing was on. Real
processes, real trainings on the device `host`. Rounds of the three alternate, and each round of
`auto` begins without any knowledge, so its probes are in its time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from measure import Figure, broker, publish, rotated
from training import Trainer, trainers

from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import SetPolicy
from turns.total import together

PAIRS = {"half_idle": ("half_idle", False), "busy": ("busy", False), "spinning": ("busy", True)}
LANES = {"auto": 0, "one": 1, "two": 2}
ROUNDS = 3
ROUND_SECONDS = 90.0  # of one lane
WARM_UP_ITERATIONS = 50


def seconds(client: Client, started: list[Trainer], lanes: int, iterations: int) -> float:
    client.ask(SetPolicy(running_lanes=lanes))
    return together(started, iterations)


def measure(pair: str) -> Iterator[Figure]:
    """Return median ratios within a round, whose ways run within the same minutes. The better of
    one lane and two is decided after all rounds: in a single round it would be a matter of
    chance."""
    model, spins = PAIRS[pair]
    with (
        broker(policy="pack") as (settings, client),
        trainers(settings, [model] * 2, spins) as started,
    ):
        seconds(client, started, 1, WARM_UP_ITERATIONS)
        pace = seconds(client, started, 1, WARM_UP_ITERATIONS) / WARM_UP_ITERATIONS
        iterations = round(ROUND_SECONDS / pace)
        rounds, found = [], []
        for number in range(ROUNDS):
            times = {}
            for name, lanes in rotated([*LANES.items()], number):
                times[name] = seconds(client, started, lanes, iterations)
                if name == "auto":
                    found.append(client.look().devices[0].finding_sentence)
            rounds.append(times)
            print(pair, {name: round(time, 2) for name, time in times.items()}, found[-1])

    def ratio(way: str, other: str) -> float:
        return statistics.median(each[way] / each[other] for each in rounds)

    yield Figure(f"{pair}_two", ratio("one", "two"))
    worse = max(ratio("auto", "one"), ratio("auto", "two"))
    yield Figure(f"{pair}_auto_over_better", worse, target=1.03)


def main() -> int:
    return publish("concurrency_tuner", [figure for pair in PAIRS for figure in measure(pair)])


if __name__ == "__main__":
    sys.exit(main())
