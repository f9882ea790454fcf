"""How long the scheduler takes to decide, with 4 to 10,000 sessions that all want the device.

One event is a turn that ends: the scheduler grants the next turn, and the one who had it asks
again. Through the Python binding, as the broker calls it, in virtual time.
"""

from __future__ import annotations

import statistics
import time

from measure import Figure, publish

from jupyter_gpushare import _core

SESSIONS = (4, 64, 1_000, 10_000)
EVENTS = 200
CAPACITY = 1 << 40


def crowd(count: int) -> tuple[_core.Scheduler, str]:
    """A scheduler with `count` sessions that have all asked; who holds the turn."""
    scheduler = _core.Scheduler(CAPACITY, "fair")
    holder = ""
    for number in range(count):
        demand = _core.Demand(1 << 20, 1 << 22, True)
        scheduler.open(0.0, f"s{number}", _core.SessionSpec(f"user{number % 50}", demand=demand))
        for grant in scheduler.request(0.0, f"s{number}", 1).grants:
            holder = grant.session
    return scheduler, holder


def decisions(count: int) -> list[float]:
    """Seconds of each finish that hands the turn on."""
    scheduler, holder = crowd(count)
    turn = dict.fromkeys((f"s{number}" for number in range(count)), 1)
    times, now = [], 0.0
    for _ in range(EVENTS):
        now += 0.25
        start = time.perf_counter()
        decision = scheduler.finish(now, holder, turn[holder])
        times.append(time.perf_counter() - start)
        turn[holder] += 1
        scheduler.request(now, holder, turn[holder])
        holder = decision.grants[0].session
    return times


def main() -> None:
    figures = []
    for count in SESSIONS:
        figures.append(Figure(str(count), statistics.median(decisions(count)) * 1e6, "us"))
    publish("decision_us", figures)


if __name__ == "__main__":
    main()
