"""The speed of trainings that compute at once in one lane, over taking turns in it.

Each training repeats a recorded iteration and sleeps instead of computing (`replayed.py`), so the
device has time for all of them and only memory limits them. A budget of 1.2 is 1.2 times the
largest peak. `unlimited` has room for the sum of all peaks. So has `tick-tock`, in which one
forward and one backward run at a time. `as tick-tock` is a budget of the most that tick-tock had
alive, plus the same overhead that a lane has over the living bytes of an iteration alone.

Each way has its own broker and processes, which wait while other ways are measured. The ways of a
set alternate, and each figure is a median of ratios within a round.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from measure import Figure, broker, publish, rotated
from training import Trainer

from turns import replayed
from turns.replayed import Board, peak_of, read

MODELS = ("vgg", "resnet50", "gpt", "gan")
SETS = (
    *((model,) * 2 for model in MODELS),
    *(("resnet50", "gpt"), ("vgg", "gan")),
    *((model,) * 3 for model in MODELS),
)
BUDGETS = (1.0, 1.2, 1.5, 2.0)
ROUNDS = 3
LEARN_SECONDS, ROUND_SECONDS = 6.0, 6.0
CHUNK = 64 << 10  # a lane has whole chunks
ROOMY = 4 << 30  # bytes


class Way(NamedTuple):
    lanes: int
    bytes: int  # of the device
    has_rhythm: bool = False


class Result(NamedTuple):
    work: float  # seconds of iterations alone, in a second
    most_together: int  # bytes that were alive at one time


class Needs(NamedTuple):
    """The needs of the processes of a set, in bytes."""

    persistent: int
    largest: int
    all: int

    def device(self, lane_bytes: float) -> int:
        return self.persistent + math.ceil(lane_bytes / CHUNK + 1) * CHUNK


class Running:
    """The processes of one way."""

    def __init__(self, stops: ExitStack, way: Way, traces: Sequence[Path]) -> None:
        folder = Path(stops.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-")))
        self._board = Board(folder, 0)
        if way.has_rhythm:
            self._board.set_rhythm()
        settings, self._client = stops.enter_context(
            broker(host_capacity_bytes=way.bytes, running_lanes=way.lanes, share_lanes=True)
        )
        self._paces = [read(trace)[-1].seconds for trace in traces]
        self._trainers = []
        for side, trace in enumerate(traces):
            program = ("turns.replayed", f"notebook-{side}", str(trace), str(folder), str(side))
            self._trainers.append(Trainer(settings, "", program=program))
            stops.callback(self._trainers[-1].stop)
        for trainer in self._trainers:
            trainer.is_ready()
        self.run(LEARN_SECONDS)

    def run(self, seconds: float) -> Result:
        self._board.most_together()
        for trainer in self._trainers:
            trainer.start(seconds)
        done = [trainer.ended() for trainer in self._trainers]
        work = sum(n * pace / took for (n, took), pace in zip(done, self._paces, strict=True))
        return Result(work, self._board.most_together())

    def needs(self) -> Needs:
        sessions = self._client.look().devices[0].sessions
        ephemeral = [session.ephemeral_bytes for session in sessions]
        persistent = sum(session.persistent_bytes for session in sessions)
        return Needs(persistent, max(ephemeral), sum(ephemeral))


def measure(set_: Sequence[str], traces: Sequence[Path]) -> Iterator[Figure]:
    name = "_".join(set_)
    with ExitStack() as stops:
        unlimited = Running(stops, Way(len(set_), ROOMY), traces)
        needs = unlimited.needs()
        room = needs.device(needs.all)
        running = {"unlimited": unlimited, "turns": Running(stops, Way(1, room), traces)}
        running["tick_tock"] = Running(stops, Way(len(set_), room, has_rhythm=True), traces)
        budgets = {str(budget): needs.largest * budget for budget in BUDGETS}
        most = running["tick_tock"].run(ROUND_SECONDS).most_together
        budgets["as_tick_tock"] = most * needs.all / sum(peak_of(read(t)).bytes for t in traces)
        for way, lane_bytes in budgets.items():
            running[way] = Running(stops, Way(len(set_), needs.device(lane_bytes)), traces)
        rounds = [one_round(running, number) for number in range(ROUNDS)]
    for each in rounds:
        print(name, {way: round(result.work, 2) for way, result in each.items()}, flush=True)

    def ratio(way: str, other: str) -> float:
        return statistics.median(each[way].work / each[other].work for each in rounds)

    for way in budgets:
        yield Figure(f"{name}_{way}", ratio(way, "turns"), target=0.98, at_least=True)
        most = max(each[way].most_together for each in rounds)
        yield Figure(f"{name}_{way}_most_over_budget", most / budgets[way], target=1.0)
    for before, after in pairwise(map(str, BUDGETS)):
        yield Figure(
            f"{name}_{after}_over_{before}", ratio(after, before), target=0.98, at_least=True
        )
    yield Figure(f"{name}_unlimited", ratio("unlimited", "turns"))
    yield Figure(f"{name}_1.5_over_unlimited", ratio("1.5", "unlimited"))
    yield Figure(
        f"{name}_over_tick_tock", ratio("as_tick_tock", "tick_tock"), target=1.0, at_least=True
    )


def one_round(running: Mapping[str, Running], number: int) -> dict[str, Result]:
    return {way: running[way].run(ROUND_SECONDS) for way in rotated([*running], number)}


def main() -> int:
    wanted = [set_ for set_ in SETS if "_".join(set_) in sys.argv[1:]] or SETS
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        traces = {model: Path(folder, f"{model}.json") for model in MODELS}
        for model in {model for set_ in wanted for model in set_}:
            replayed.record(model, traces[model])
        for set_ in wanted:
            figures += measure(set_, [traces[model] for model in set_])
    near = [figure.value for figure in figures if figure.name.endswith("_1.5_over_unlimited")]
    figures.append(
        Figure("1.5_over_unlimited", statistics.median(near), target=0.95, at_least=True)
    )
    return publish("co_lanes", figures)


if __name__ == "__main__":
    sys.exit(main())
