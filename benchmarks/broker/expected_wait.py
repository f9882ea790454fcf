"""How accurate the expected waits and the finish times are, under every policy, in virtual time
through the real service.

Notebooks come and go as in a class: cells of many iterations with pauses between them. In `known`
they declare their iterations, in `unknown` they do not, and their memory is not measured before the
first one; in `debts` some have iterations of many seconds, after which the others are served first;
in `surprises` an iteration that is usually short is sometimes long. The notebooks belong to one
user, two users, or three users of two groups with weights. The expected wait of each notebook that
has waited for half a second is read twice a second, as for a waiting cell.

An error is |expected - real| / real at each such moment. A shown wait is *too long* if it is a
second or more, more than OVER times the real one, and not a bound; a bound is *broken* if the real
wait is longer by more than a second. The error of a finish time is the same, at moments at least
five seconds before the end of a cell: others come and go meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

from measure import Figure, publish

from jupyter_gpushare import _core
from jupyter_gpushare.broker.admin.rulebook_file import RulebookFile
from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import (
    PROTOCOL,
    Busy,
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
SEEDS = 6
LOOK_SECONDS = 0.5
REPORT_SECONDS = 0.5
LONG_SECONDS = 5.0
SURPRISE_SECONDS = 15.0
SHOWN_SECONDS = 1.0  # a shorter expected wait reads `next`
OVER = 1.5
MOST_OF_ALL = 0.02  # of the waits that are shown
MOST_OF_CELL = 0.1  # of those of one kind of scene under one policy
DEVICE = Device("cuda:0", 16 << 30, "a GPU")
MEASURED = Demand(100 << 20, 200 << 20, measured=True)
KINDS = ("known", "unknown", "debts", "surprises")


class Users(NamedTuple):
    """The owners of the notebooks, in turn, and their weights in the admin's rulebook."""

    title: str
    names: tuple[str, ...]
    rules: str = ""


CLASS = """
[groups.students]
members = ["ann", "bob"]
weight = 2
[groups.staff]
members = ["cid"]
[users.ann]
weight = 3
"""
USERS = (
    Users("one user", ("ann",)),
    Users("two users", ("ann", "bob")),
    Users("three users of two groups", ("ann", "bob", "cid"), CLASS),
)


FOLDER = tempfile.TemporaryDirectory()


@cache
def rulebook(users: Users) -> RulebookFile:
    path = Path(FOLDER.name, f"{users.title}.toml")
    path.write_text(users.rules)
    return RulebookFile(str(path))


class Heard(Peer):
    """A connection that hands each message to the notebook at its end."""

    def __init__(self, user: str, hears: Callable[[Message], None]) -> None:
        self.uid, self.pid, self.user = 0, 1, user
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


class Estimate(NamedTuple):
    """The rest of a wait, as the broker estimated it at that time."""

    time: float
    seconds: float | None
    is_bound: bool


class Told(NamedTuple):
    """The estimated and the real rest of a wait, from one moment on."""

    seconds: float
    is_bound: bool
    real: float


@dataclass
class Wait:
    """One wait, with its estimates."""

    granted: float | None = None
    said: list[Estimate] = field(default_factory=list)

    def told(self) -> Iterator[Told]:
        for time, seconds, is_bound in self.said:
            if self.granted is not None and seconds is not None and self.granted > time:
                yield Told(seconds, is_bound, self.granted - time)


@dataclass
class Cell:
    """One cell, with its finish times: when each was estimated, and in how many seconds it was
    expected."""

    ended: float | None = None
    said: list[tuple[float, float | None]] = field(default_factory=list)

    def moments(self) -> Iterator[tuple[float | None, float]]:
        """Yield the estimated and the real seconds, for moments long before the end."""
        for time, expected in self.said:
            if self.ended is not None and self.ended - time >= LONG_SECONDS:
                yield expected, self.ended - time


class Notebook:
    """Cells of iterations, with pauses; it behaves as a session does."""

    def __init__(self, scene: Scene, name: str, user: str) -> None:
        kind, seed = scene.kind, scene.seed
        self.scene, self.name, self.kind = scene, name, kind
        self.random = random = Random(f"{seed} {name}")
        self.is_long = kind == "debts" and random.random() < 0.4
        self.iteration = random.uniform(3.0, 12.0) if self.is_long else random.uniform(0.03, 0.6)
        self.turn = 0
        self.left = 0
        self.holding = self.asked = False
        self.unreported, self.report_due = 0, 0.0
        self.is_measured = kind != "unknown"
        self.waits: list[Wait] = []
        self.cells: list[Cell] = []
        self.peer = Heard(user, self.hears)

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
        self.cells.append(Cell())
        self.say(Busy(True))
        if self.remaining is not None:
            self.say(Report(0, MEASURED, self.remaining))
        self.asks()

    def asks(self) -> None:
        self.turn += 1
        self.asked = False
        self.waits.append(Wait())
        self.say(Request(self.turn))

    def hears(self, message: Message) -> None:
        if isinstance(message, Error):
            raise AssertionError(message.message)
        if isinstance(message, Grant) and message.turn == self.turn and not self.holding:
            self.waits[-1].granted = self.scene.now
            self.holding = True
            self.set_report_due()
            self.computes()
        elif isinstance(message, Yield) and message.turn == self.turn:
            self.asked = True

    def computes(self) -> None:
        seconds = self.iteration * self.random.lognormvariate(0, 0.08)
        if self.random.random() < 0.002 and self.kind == "surprises":
            seconds = SURPRISE_SECONDS
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
        self.set_report_due()
        self.say(Report(done, MEASURED, self.remaining))

    def set_report_due(self) -> None:
        self.report_due = self.scene.now + REPORT_SECONDS

    def parts(self) -> None:
        self.reports()
        self.say(Finish(self.turn))
        self.holding = False
        if self.left:
            self.asks()
        else:
            self.cells[-1].ended = self.scene.now
            self.say(Busy(False))
            self.scene.at(self.scene.now + self.random.expovariate(1 / 10.0), self.begins_cell)


class Scene:
    """A broker's service, and its notebooks, in virtual time."""

    def __init__(self, policy: str, kind: str, users: Users, seed: int) -> None:
        self.policy, self.kind, self.users, self.seed = policy, kind, users, seed
        random = Random(seed)
        settings = load({}, policy=policy)
        self.service = Service(settings, [DEVICE], started=0.0, rulebook=rulebook(users))
        self.now = 1.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        whose = itertools.islice(itertools.cycle(users.names), NOTEBOOKS)
        self.notebooks = [Notebook(self, f"n{i}", user) for i, user in enumerate(whose)]
        for notebook in self.notebooks:
            self.at(1.0 + 20 * random.random(), notebook.opens)
        self.at(self.now, self.look)

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), event))

    def run(self, until: float = SECONDS) -> Scene:
        while self._events[0][0] < until:
            wake = self.service.next_event(self.now)
            if wake is not None and wake <= self._events[0][0]:
                self.now = max(self.now, wake)
                self.service.pass_time(self.now)
            else:
                self.now, _, event = heapq.heappop(self._events)
                event()
        return self

    def look(self) -> None:
        of_name = {notebook.name: notebook for notebook in self.notebooks}
        for view in self.service.snapshot(self.now).devices[0].sessions:
            if view.waiting_seconds is not None and view.waiting_seconds >= LOOK_SECONDS:
                said = of_name[view.name].waits[-1].said
                is_bound = view.expected_wait_is_bound
                said.append(Estimate(self.now, view.expected_wait_seconds, is_bound))
            if view.busy and view.remaining_iterations:
                cell = of_name[view.name].cells[-1]
                cell.said.append((self.now, view.remaining_seconds))
        self.at(self.now + LOOK_SECONDS, self.look)


def figures_of(name: str, scenes: list[Scene], most: float = MOST_OF_ALL) -> Iterator[Figure]:
    """Yield figures of the waits that were long enough to have estimates, and ended. `most` is the
    part of the moments that may be wrong."""
    notebooks = [notebook for scene in scenes for notebook in scene.notebooks]
    waits = [wait for notebook in notebooks for wait in notebook.waits]
    told = [wait for wait in waits if wait.said and wait.granted is not None]
    answers = [[one.seconds is not None for one in wait.said] for wait in told]
    yield Figure(f"{name}: waits", len(told))
    if told:
        yield Figure(f"{name}: part with an estimate", statistics.mean(map(any, answers)))
        moments = itertools.chain.from_iterable(answers)
        yield Figure(f"{name}: part of moments with one", statistics.mean(moments))
    yield from figures_of_estimates(name, [one for wait in waits for one in wait.told()], most)
    yield from figures_of_cells(name, [cell for notebook in notebooks for cell in notebook.cells])


def figures_of_estimates(name: str, told: list[Told], most: float) -> Iterator[Figure]:
    """A bound says less than an estimate, so it does not count in the median error."""
    shown = [one for one in told if one.seconds >= SHOWN_SECONDS]
    if estimates := [one for one in shown if not one.is_bound]:
        error = statistics.median(abs(one.seconds - one.real) / one.real for one in estimates)
        yield Figure(f"{name}: median error", error, target=0.25)
    if shown:
        long = [not one.is_bound and one.seconds > OVER * one.real for one in shown]
        part = statistics.mean(long)
        yield Figure(f"{name}: part of shown waits that are too long", part, target=most)
    if bounds := [one for one in shown if one.is_bound]:
        broken = [one.real > one.seconds + SHOWN_SECONDS for one in bounds]
        part = statistics.mean(broken)
        yield Figure(f"{name}: part of bounds that are broken", part, target=most)


def figures_of_cells(name: str, cells: list[Cell]) -> Iterator[Figure]:
    """Yield figures of the finish times of cells that have declared their iterations."""
    told = [moment for cell in cells for moment in cell.moments()]
    if errors := [abs(said - real) / real for said, real in told if said is not None]:
        yield Figure(f"{name}: part of moments with a finish time", len(errors) / len(told))
        yield Figure(f"{name}: median error of finish times", statistics.median(errors))


def main() -> int:
    scenes = [
        Scene(policy, kind, users, seed).run()
        for policy, _ in _core.policies()
        for kind in KINDS
        for users in USERS
        for seed in range(SEEDS)
    ]
    figures = [*figures_of("all", scenes)]
    for of in (attrgetter("users.title"), attrgetter("policy", "kind")):
        for name in dict.fromkeys(map(of, scenes)):
            title = name if isinstance(name, str) else ", ".join(name)
            those = [scene for scene in scenes if of(scene) == name]
            figures += figures_of(title, those, MOST_OF_ALL if title == name else MOST_OF_CELL)
    return publish("expected_wait", figures)


if __name__ == "__main__":
    sys.exit(main())
