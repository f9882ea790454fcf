"""The cost of the broker: 200 sessions, 20 of them training, and one viewer as JupyterLab's panel.

The sessions are real connections that behave as notebooks do: they hold a turn until they are
asked to yield, report twice a second, and ask again at once. Memory and processor time are those
of the broker process.
"""

from __future__ import annotations

import select
import sys
import time

import psutil
from measure import Figure, broker, publish

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import Finish, Grant, Open, Report, Request, Watch, Yield

SESSIONS = 200
ACTIVE = 20
SECONDS = 20.0
REPORT_SECONDS = 0.5
DEMAND = Demand(100 << 20, 200 << 20, measured=True)


class Notebook:
    """One session on a connection of its own."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.client = Client.connect(settings, "benchmark")
        self.client.ask(Open(f"n{number}", f"n{number}.ipynb", demand=DEMAND))
        self.turn = 0
        self.turns = 0
        self._holding = False
        self._report_due = 0.0

    def ask(self) -> None:
        self.turn += 1
        self.client.send(Request(self.turn))

    def listen(self) -> None:
        """React to all messages that have come."""
        while self.client.has_news():
            message = self.client.receive()
            if isinstance(message, Grant):
                self._holding, self._report_due = True, time.monotonic() + REPORT_SECONDS
                self.turns += 1
            elif isinstance(message, Yield) and self._holding:
                self._holding = False
                self.client.send(Report(10, DEMAND), Finish(self.turn))
                self.ask()

    def report_if_due(self, now: float) -> None:
        if self._holding and now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            self.client.send(Report(10, DEMAND))


def work(notebooks: list[Notebook], subscriber: Client, seconds: float) -> None:
    """Serve all connections for `seconds`."""
    poll = select.poll()
    by_descriptor = {notebook.client.fileno(): notebook for notebook in notebooks}
    for descriptor in (*by_descriptor, subscriber.fileno()):
        poll.register(descriptor, select.POLLIN)
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        for descriptor, _ in poll.poll(50):
            if descriptor in by_descriptor:
                by_descriptor[descriptor].listen()
            else:
                subscriber.receive()
        for notebook in notebooks[:ACTIVE]:
            notebook.report_if_due(now)


def measure(settings: Settings, subscriber: Client) -> list[Figure]:
    process = psutil.Process(subscriber.welcome.pid)
    notebooks = [Notebook(settings, number) for number in range(SESSIONS)]
    subscriber.send(Watch(0.25))
    for notebook in notebooks[:ACTIVE]:
        notebook.ask()
    work(notebooks, subscriber, 3.0)  # until it runs evenly
    before, start = process.cpu_times(), time.monotonic()
    first = sum(notebook.turns for notebook in notebooks)
    work(notebooks, subscriber, SECONDS)
    used, seconds = process.cpu_times(), time.monotonic() - start
    busy = used.user + used.system - before.user - before.system
    turns = sum(notebook.turns for notebook in notebooks) - first
    figures = [
        Figure("memory_mb", process.memory_info().rss / 1e6, "MB", target=60),
        Figure("cpu_percent", 100 * busy / seconds, "% of a core", target=5),
        Figure("turns_per_second", turns / seconds),
    ]
    for notebook in notebooks:
        notebook.client.close()
    return figures


def main() -> int:
    with broker() as (settings, client):
        with Client.connect(settings, "subscriber") as subscriber:
            figures = measure(settings, subscriber)
        client.look()  # the broker still answers
    return publish("broker", figures)


if __name__ == "__main__":
    sys.exit(main())
