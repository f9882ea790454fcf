"""`make load`: a busy host for half an hour, and whether the broker's figures change from start to
end.

200 notebooks are registered, 60 of them want the turn all the time, and 50 viewers watch as
JupyterLab's panels do; beside them 1,000 notebooks a minute come and go, half of them without a
goodbye, like killed kernels. All are real connections, in three processes. A switch is the time
from a holder's Finish to the next one's Grant, through the broker, as the notebooks' process sees
it. The floor is a bare round trip, just before, to a process that does nothing else. Growth is the
slope of a line through the minutes of the run after its first tenth.

It writes docs/results/load.md, docs/pictures/load.png and benchmarks/results/load.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import secrets
import select
import socket
import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from measure import broker, machine, percentile

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator import plots
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import encode
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.wire.messages import (
    PROTOCOL,
    Close,
    Finish,
    Grant,
    Hello,
    Open,
    Report,
    Request,
    Watch,
    Yield,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "load.md"
RESULTS = ROOT / "benchmarks" / "results" / "load.json"
PICTURE = Path("..") / "pictures" / "load.png"  # from the page
SESSIONS, ACTIVE, SUBSCRIBERS, COMERS_PER_MINUTE = 200, 60, 50, 1000
QUANTUM_SECONDS = 0.1
LOOK_SECONDS = 0.25
REPORT_SECONDS = 0.5
MESSAGE = bytes(64)
SAMPLE_SECONDS = 5.0
MINUTE = 60.0
WARM_UP = 0.1  # of the run
DEMAND = Demand(20 << 20, 200 << 20, measured=True)
FLAT_PERCENT = 5.0  # a figure that has changed by no more of its mean in the run is flat


# --- clients --------------------------------------------------------------------------------------


class Notebook:
    """A notebook that wants the turn all the time, and gives it back when it is asked to."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.client = Client.connect(settings, "load")
        self.client.ask(Open(f"n{number}", f"n{number}.ipynb", device="host", demand=DEMAND))
        self.turn = 0
        self.holding = False
        self._report_due = 0.0

    def ask(self) -> None:
        self.turn += 1
        self.client.send(Request(self.turn))

    def give_back(self) -> None:
        self.holding = False
        self.client.send(Finish(self.turn), Report(10, DEMAND))

    def report_if_due(self, now: float) -> None:
        if self.holding and now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            self.client.send(Report(10, DEMAND))


class Times(NamedTuple):
    """A context switch, at `when`: how long it took, and a round trip before it. Seconds."""

    when: float
    lasted: float
    floor: float


class Room:
    """All notebooks, and how long each context switch took; `echo` sends back what it is sent."""

    def __init__(self, settings: Settings, echo: socket.socket) -> None:
        self._echo = echo
        self._notebooks = [Notebook(settings, number) for number in range(SESSIONS)]
        self._by_descriptor = {one.client.fileno(): one for one in self._notebooks}
        self._poll = select.poll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._floor = 0.0
        self._finished = 0.0  # when the last turn was given back; 0: a session has it
        self.times: list[Times] = []

    def work(self, over: Event) -> None:
        active = self._notebooks[:ACTIVE]
        for notebook in active:
            notebook.ask()
        while not over.is_set():
            for descriptor, _ in self._poll.poll(50):
                self._listen(self._by_descriptor[descriptor])
            now = time.monotonic()
            for notebook in active:
                notebook.report_if_due(now)

    def _listen(self, notebook: Notebook) -> None:
        while notebook.client.has_news():
            message = notebook.client.receive()
            now = time.monotonic()
            if isinstance(message, Grant) and not notebook.holding:
                notebook.holding = True
                if self._finished:
                    self.times.append(Times(now, now - self._finished, self._floor))
                self._finished = 0.0
            elif isinstance(message, Yield) and notebook.holding:
                self._floor = self._round_trip()
                self._finished = time.monotonic()
                notebook.give_back()
                notebook.ask()

    def _round_trip(self) -> float:
        start = time.monotonic()
        self._echo.sendall(MESSAGE)
        self._echo.recv(len(MESSAGE))
        return time.monotonic() - start


def take_turns(settings: Settings, path: str, echo: socket.socket, over: Event) -> None:
    room = Room(settings, echo)
    room.work(over)
    Path(path).write_text(json.dumps(room.times))
    echo.shutdown(socket.SHUT_RDWR)


def send_back(echo: socket.socket) -> None:
    while message := echo.recv(len(MESSAGE)):
        echo.sendall(message)


def look(settings: Settings, over: Event) -> None:
    """Behave as SUBSCRIBERS panels that discard each Snapshot: its display is not the broker's
    work."""
    subscribers = [connect(settings) for _ in range(SUBSCRIBERS)]
    for subscriber in subscribers:
        subscriber.sendall(encode(Hello(PROTOCOL)) + encode(Watch(LOOK_SECONDS)))
    while not over.is_set():
        for readable in select.select(subscribers, [], [], 0.1)[0]:
            readable.recv(1 << 20)


def come_and_go(settings: Settings, over: Event) -> None:
    """Open one after the other, at an even pace."""
    pause, due = MINUTE / COMERS_PER_MINUTE, time.monotonic()
    for number in itertools.count():
        due += pause
        if over.wait(max(0.0, due - time.monotonic())):
            return
        with Client.connect(settings, "load") as client:
            name = secrets.token_hex(6)
            client.ask(Open(name, f"{name}.ipynb", device="host", demand=DEMAND))
            if number % 2:
                client.ask(Close())


# --- what it costs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """The broker `seconds` after the start; processor time since the sample before."""

    seconds: float
    cpu_percent: float
    rss_mb: float
    descriptors: int
    sessions: int


def samples(pid: int, client: Client, seconds: float) -> Iterator[Sample]:
    process, start = psutil.Process(pid), time.monotonic()
    process.cpu_percent()
    while (passed := time.monotonic() - start) < seconds:
        time.sleep(min(SAMPLE_SECONDS, seconds - passed))
        used, rss = process.cpu_percent(), process.memory_info().rss / 1e6
        there = len(client.look().devices[0].sessions)
        yield Sample(time.monotonic() - start, used, rss, process.num_fds(), there)


@dataclass(frozen=True)
class Minute:
    """Means of the samples of a minute, and its context switches and the floor in microseconds."""

    cpu_percent: float
    rss_mb: float
    descriptors: float
    sessions: float
    change_overs: int
    p50_us: float
    p99_us: float
    floor_p50_us: float
    floor_p99_us: float


def minutes(taken: Sequence[Sample], times: Sequence[Times]) -> list[Minute]:
    """Group by minutes; `times` are since the start of the run, as the samples' are. The rest is
    dropped."""
    return [
        _minute(
            [one for one in taken if begin < one.seconds <= begin + MINUTE],
            [one for one in times if begin < one.when <= begin + MINUTE],
        )
        for begin in (number * MINUTE for number in range(int(taken[-1].seconds // MINUTE)))
    ]


def _minute(taken: Sequence[Sample], times: Sequence[Times]) -> Minute:
    lasted, floor = [1e6 * one.lasted for one in times], [1e6 * one.floor for one in times]
    return Minute(
        cpu_percent=statistics.fmean(one.cpu_percent for one in taken),
        rss_mb=statistics.fmean(one.rss_mb for one in taken),
        descriptors=statistics.fmean(one.descriptors for one in taken),
        sessions=statistics.fmean(one.sessions for one in taken),
        change_overs=len(times),
        p50_us=statistics.median(lasted),
        p99_us=percentile(lasted, 99),
        floor_p50_us=statistics.median(floor),
        floor_p99_us=percentile(floor, 99),
    )


class Trend(NamedTuple):
    """A line through the minutes: its mean, its change over the run in percent of the mean, and the
    half width of the change's 95 % interval."""

    mean: float
    percent: float
    margin: float

    @property
    def verdict(self) -> str:
        if abs(self.percent) <= FLAT_PERCENT or abs(self.percent) <= self.margin:
            return "flat"
        return "grows" if self.percent > 0 else "falls"


STUDENT = {1: 12.7, 2: 4.30, 3: 3.18, 5: 2.57, 8: 2.31, 12: 2.18, 20: 2.09, 30: 2.04}  # 95 %


def trend(values: Sequence[float]) -> Trend:
    """Fit by least squares. Minutes are assumed to be independent of each other."""
    numbers, mean = range(len(values)), statistics.fmean(values)
    slope, start = statistics.linear_regression(numbers, values)
    free = len(values) - 2
    rest = sum((value - start - slope * at) ** 2 for at, value in zip(numbers, values, strict=True))
    spread = sum((at - statistics.fmean(numbers)) ** 2 for at in numbers)
    student = next((t for most, t in reversed(STUDENT.items()) if most <= free), float("inf"))
    margin = student * (rest / max(free, 1) / spread) ** 0.5
    percent = 100 * (len(values) - 1) / mean
    return Trend(mean, slope * percent, margin * percent)


# --- the report ---------------------------------------------------------------------------------

TOLD = {  # of each minute; digits, and its name
    "p50_us": (0, "context switch, median, us"),
    "floor_p50_us": (0, "round trip, median, us"),
    "p99_us": (0, "context switch, p99, us"),
    "floor_p99_us": (0, "round trip, p99, us"),
    "cpu_percent": (1, "broker, % of a core"),
    "rss_mb": (1, "broker, resident MB"),
    "descriptors": (0, "broker, descriptors"),
    "sessions": (0, "sessions"),
}


def picture(found: Sequence[Minute]) -> Figure:
    """Return one row for each kind of figure, over the minutes."""
    rows = (
        ("p50_us", "floor_p50_us"),
        ("p99_us", "floor_p99_us"),
        *(("cpu_percent",), ("rss_mb",), ("descriptors",)),
    )
    with plots.style():
        drawn, axes = plots.figure(9, 9, len(rows))
        for row, names in enumerate(rows):
            for number, name in enumerate(names):
                colour, dashes = plots.COLOURS[number], plots.DASHES[number]
                values, (_, label) = [getattr(one, name) for one in found], TOLD[name]
                times = [minute + 0.5 for minute in range(len(found))]
                axes[row, 0].plot(times, values, color=colour, ls=dashes, label=label)
            most = max(getattr(one, name) for name in names for one in found)
            axes[row, 0].set_ylim(0, 1.4 * most)  # with room for the legend
            axes[row, 0].legend(loc="upper right", ncols=2)
        axes[-1, 0].set_xlabel("minutes")
    return drawn


def page(found: Sequence[Minute], about: dict[str, object]) -> str:
    steady = found[int(WARM_UP * len(found)) :]
    rows = [_row(name, [getattr(one, name) for one in steady]) for name in TOLD]
    paragraphs = [
        f"""The load of half an hour on the broker of a busy host. `make load` wrote this from its
        last run: {len(found)} minutes with {SESSIONS} notebooks. {ACTIVE} of them wanted the turn
        all the time and had it for {1000 * QUANTUM_SECONDS:g} ms each, {SUBSCRIBERS} panels that
        watched, and {COMERS_PER_MINUTE:,} notebooks a minute that came and went, half of them
        without a word. All were real connections to a real broker, on the device `host`, on
        {about["cores"]} cores{about["beside"]}.""",
        f"""There were {sum(one.change_overs for one in found):,} context switches, all of
        them through the broker: one is counted from the holder's *finish* to the next one's
        *grant*, as their process sees it. The round trip beside it goes just before to a
        process that only sends back what it gets, while the notebooks' process waits for
        it. The time of a context switch beyond that is the computing of the broker, and,
        where other programs want the processors, the waiting of the broker and of the
        notebooks' process for one. This run tells whether it stays the same, and `make
        bench`, on a machine without other load, how long it takes.""",
        f"![the figures of the table below, over the minutes]({PICTURE})",
        f"""A line through the minutes after the first tenth tells the change from the first
        of them to the last, in percent of the mean, with 95 % of certainty. A change of at
        most {FLAT_PERCENT:g} %, or one that cannot be told from noise, is called flat.""",
    ]
    filled = (textwrap.fill(" ".join(one.split()), 100) for one in paragraphs)
    head = "| figure | mean | changed by, % | |\n| --- | ---: | ---: | --- |\n"
    return "\n\n".join(["# Load", *filled, head + "".join(rows)])


def _row(name: str, values: Sequence[float]) -> str:
    digits, label = TOLD[name]
    line = trend(values)
    changed = f"{line.percent:+.1f} ± {line.margin:.1f}"
    return f"| {label} | {line.mean:,.{digits}f} | {changed} | {line.verdict} |\n"


# --- the run -------------------------------------------------------------------------------------


def run(seconds: float) -> list[Minute]:
    fork = multiprocessing.get_context("fork")
    over = fork.Event()
    ours, theirs = socket.socketpair()
    with broker(quantum_seconds=QUANTUM_SECONDS, host_capacity_bytes=8 << 30) as (settings, client):
        times = Path(settings.socket).with_name("times.json")
        parts: list[BaseProcess] = [
            fork.Process(target=take_turns, args=(settings, str(times), ours, over)),
            fork.Process(target=send_back, args=(theirs,)),
            fork.Process(target=look, args=(settings, over)),
            fork.Process(target=come_and_go, args=(settings, over)),
        ]
        for part in parts:
            part.start()
        _await_sessions(client)
        start = time.monotonic()
        try:
            taken = list(samples(client.welcome.pid, client, seconds))
        finally:
            over.set()
            for part in parts:
                part.join()
        found = [Times(*one) for one in json.loads(times.read_text())]
        found = [one._replace(when=one.when - start) for one in found]
    return minutes(taken, found)


def _await_sessions(client: Client) -> None:
    while len(client.look().devices[0].sessions) < SESSIONS:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--beside", default="", help="what else ran on the machine, for the page")
    given = parser.parse_args()
    found = run(given.minutes * MINUTE)
    about = machine() | {"beside": given.beside and f", beside {given.beside}"}
    figures = {"machine": about, "minutes": [asdict(one) for one in found]}
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    plots.save(picture(found), PAGE.parent / PICTURE)
    PAGE.write_text(page(found, about))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
