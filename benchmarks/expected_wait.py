"""How true the expected waits are, under every policy, in virtual time through the real service.

Notebooks come and go as in a class: cells of many iterations with pauses between them. In `known`
they declare their iterations, in `unknown` they do not, and their memory is not measured before
the first one; in `debts` some have iterations of many seconds, for which the others are then served
first; in `surprises` a short iteration is a long one now and then, which nobody can foresee. Each
one that has waited for half a second is asked about twice a second, as a waiting cell is told.

An error is |expected - real| / real of each such moment. Of waits that were said to end soon and
did not, those are told apart that did so by what began only later: a cell that the policy serves
first, or an iteration that was like the others until then.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from measure import Figure, publish

from jupyter_gpushare import _core
from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire.protocol import (
    PROTOCOL,
    Busy,
    Demand,
    Error,
    Finish,
    Grant,
    Hello,
    Message,
    Open,
    Report,
    Request,
    Yield,
)

SECONDS = 300.0
NOTEBOOKS = 6
SEEDS = 2
LOOK_SECONDS = 0.5
UNLIKE = 2.5  # times as long as usual: then an iteration can be told from the others
LONG_SECONDS, SHORT_SECONDS = 5.0, 1.0
DEVICE = Device("cuda:0", 16 << 30, "a GPU")
MEASURED = Demand(100 << 20, 200 << 20, measured=True)
KINDS = ("known", "unknown", "debts", "surprises")


class Heard(Peer):
    """A connection that hands each message to the notebook at its end."""

    def __init__(self, hears: Callable[[Message], None]) -> None:
        self.uid, self.pid, self.user, self.is_owner = 0, 1, "root", True
        self._hears = hears

    def send(self, *messages: Message) -> None:
        for message in messages:
            self._hears(message)

    def send_frame(self, frame: bytes) -> None:
        pass

    def send_with(self, message: Message, descriptor: int) -> None:
        self.send(message)

    def is_alive(self) -> bool:
        return True

    def is_behind(self) -> bool:
        return False

    def close(self) -> None:
        pass


@dataclass
class Wait:
    """One wait, with what was said of it: when, and how much longer it would take."""

    asked: float
    cell: float  # when the cell began that waits
    granted: float | None = None
    ended: float | None = None  # the turn that it waited for
    said: list[tuple[float, float | None]] = field(default_factory=list)


class Pair(NamedTuple):
    """One moment of a wait: how much longer it was said to take, and took, all in seconds."""

    expected: float
    real: float
    unforeseen: float

    @property
    def error(self) -> float:
        return abs(self.expected - self.real) / self.real

    @property
    def is_late(self) -> bool:
        return self.expected < SHORT_SECONDS and self.real > LONG_SECONDS

    @property
    def is_wrong(self) -> bool:
        """Late, and by what was there already."""
        return self.is_late and self.real - self.unforeseen > LONG_SECONDS


class Notebook:
    """Cells of iterations, with pauses; it behaves as a session does."""

    def __init__(self, scene: Scene, name: str, kind: str, random: Random) -> None:
        self.scene, self.name, self.kind, self.random = scene, name, kind, random
        self.is_long = kind == "debts" and random.random() < 0.4
        self.iteration = random.uniform(3.0, 12.0) if self.is_long else random.uniform(0.03, 0.6)
        self.turn = 0
        self.left = 0
        self.holding = self.asked = False
        self.unreported, self.report_due = 0, 0.0
        self.is_measured = kind != "unknown"
        self.cell = 0.0
        self.waits: list[Wait] = []
        self.surprises: list[tuple[float, float]] = []  # from when they were not like the others
        self.peer = Heard(self.hears)

    @property
    def remaining(self) -> int | None:
        return self.left if self.kind == "known" else None

    def say(self, message: object) -> None:
        self.scene.service.handle(self.peer, message, self.scene.now)  # type: ignore[arg-type]

    def opens(self) -> None:
        self.say(Hello(PROTOCOL))
        demand = MEASURED if self.is_measured else Demand(0, 0, measured=False)
        self.say(Open(self.name, self.name, "cuda:0", demand=demand, busy=False))
        self.begins_cell()

    def begins_cell(self) -> None:
        most = 4 if self.is_long else 150
        self.left = self.random.randint(1, most)
        self.cell = self.scene.now
        self.say(Busy(True))
        if self.remaining is not None:
            self.say(Report(0, MEASURED, self.remaining))
        self.asks()

    def asks(self) -> None:
        self.turn += 1
        self.asked = False
        self.waits.append(Wait(self.scene.now, self.cell))
        self.say(Request(self.turn))

    def hears(self, message: Message) -> None:
        if isinstance(message, Error):
            raise AssertionError(message.message)
        if isinstance(message, Grant) and message.turn == self.turn and not self.holding:
            self.waits[-1].granted = self.scene.now
            self.holding = True
            self.report_due = self.scene.now + 0.5
            self.computes()
        elif isinstance(message, Yield) and message.turn == self.turn:
            self.asked = True

    def computes(self) -> None:
        seconds = self.iteration * self.random.lognormvariate(0, 0.08)
        if self.kind == "surprises" and self.random.random() < 0.002:
            seconds = 15.0
            usual = self.scene.now + UNLIKE * self.iteration
            self.surprises.append((usual, self.scene.now + seconds))
        self.scene.at(self.scene.now + seconds, self.reaches_boundary)

    def reaches_boundary(self) -> None:
        self.left -= 1
        self.unreported += 1
        if self.left == 0 or self.asked:
            self.parts()
        else:
            if self.scene.now >= self.report_due or not self.is_measured:
                self.reports()
            self.computes()

    def reports(self) -> None:
        self.is_measured = True
        done, self.unreported = self.unreported, 0
        self.report_due = self.scene.now + 0.5
        self.say(Report(done, MEASURED, self.remaining))

    def parts(self) -> None:
        self.reports()
        self.say(Finish(self.turn))
        self.holding = False
        self.waits[-1].ended = self.scene.now
        if self.left:
            self.asks()
        else:
            self.say(Busy(False))
            self.scene.at(self.scene.now + self.random.expovariate(1 / 10.0), self.begins_cell)


class Scene:
    """A broker's service, and its notebooks, in virtual time."""

    def __init__(self, policy: str, kind: str, seed: int) -> None:
        random = Random(seed)
        self.service = Service(load({}, policy=policy), [DEVICE], started=0.0)
        self.now = 1.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.notebooks = [Notebook(self, f"n{number}", kind, random) for number in range(NOTEBOOKS)]
        for notebook in self.notebooks:
            self.at(1.0 + 20 * random.random(), notebook.opens)
        self.at(self.now, self.look)

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), event))

    def run(self) -> Scene:
        while self._events[0][0] < SECONDS:
            wake = self.service.next_event(self.now)
            if wake is not None and wake <= self._events[0][0]:
                self.now = max(self.now, wake)
                self.service.pass_time(self.now)
            else:
                self.now, _, event = heapq.heappop(self._events)
                event()
        return self

    def pairs(self, wait: Wait) -> Iterator[Pair]:
        """What was said of a wait that is over, and what was true."""
        end = wait.granted
        assert end is not None
        for time, expected in wait.said:
            if expected is not None and end > time:
                yield Pair(expected, end - time, self.unforeseen(time, end))

    def unforeseen(self, time: float, end: float) -> float:
        """Seconds until `end` that were taken by what began after `time`."""
        later = [
            (wait.granted, wait.ended or end)
            for notebook in self.notebooks
            for wait in notebook.waits
            if wait.cell > time and wait.granted is not None
        ]
        unlike = [one for notebook in self.notebooks for one in notebook.surprises if one[0] > time]
        return sum(max(0.0, min(to, end) - begin) for begin, to in later + unlike)

    def look(self) -> None:
        of_name = {notebook.name: notebook for notebook in self.notebooks}
        for view in self.service.snapshot(self.now).devices[0].sessions:
            if view.waiting_seconds is not None and view.waiting_seconds >= LOOK_SECONDS:
                said = of_name[view.name].waits[-1].said
                said.append((self.now, view.expected_wait_seconds))
        self.at(self.now + LOOK_SECONDS, self.look)


def figures_of(name: str, scenes: list[Scene]) -> Iterator[Figure]:
    """Of waits that were long enough to be told, and ended."""
    told = [
        (scene, wait)
        for scene in scenes
        for notebook in scene.notebooks
        for wait in notebook.waits
        if wait.said and wait.granted is not None
    ]
    pairs = [pair for scene, wait in told for pair in scene.pairs(wait)]
    known = sum(any(expected is not None for _, expected in wait.said) for _, wait in told)
    yield Figure(f"{name}: waits", len(told))
    if told:
        yield Figure(f"{name}: part with an estimate", known / len(told))
    if pairs:
        errors = [pair.error for pair in pairs]
        yield Figure(f"{name}: median error", statistics.median(errors), target=0.25)
    wrong = sum(pair.is_wrong for pair in pairs)
    yield Figure(f"{name}: said soon, lasted over 5 s", wrong, target=0)
    late = sum(pair.is_late for pair in pairs) - wrong
    if late:
        yield Figure(f"{name}: the same, by what began later", late)


def main() -> None:
    figures: list[Figure] = []
    total: list[Scene] = []
    for policy, _ in _core.policies():
        for kind in KINDS:
            scenes = [Scene(policy, kind, seed).run() for seed in range(SEEDS)]
            figures += figures_of(f"{policy}, {kind}", scenes)
            total += scenes
    publish("expected_wait", [*figures_of("all", total), *figures])


if __name__ == "__main__":
    main()
