"""How long the scheduler takes to decide, with 4 to 10,000 sessions that all want the device.

One event is a turn that ends: the core grants the next turn, and the former holder asks
again. The calls go through the Python binding, as the broker calls it, in virtual time. Another
figure is how long a look takes, with the expected waits, at 10 sessions in the queue, and at 50
beside as many idle ones.

An event in a cluster is a gang that ends while another one comes. The queue decides for 64 nodes
and for 1,000 nodes with 8 GPUs each, with 1,000 and 10,000 waiting gangs.
"""

from __future__ import annotations

import statistics
import sys
import time

from measure import Figure, publish

from jupyter_gpushare import _core

SESSIONS = (4, 64, 1_000, 10_000)
CROWDS = {100: None, 990: 250.0}  # sessions of one user that wait, and the promised us, if any
LOOKS = ((10, 0), (50, 50))  # sessions that want the device, and idle ones
BOOSTED = _core.Rules(boost=0.5)  # as a broker has it
EVENTS = 200
# Nodes, gangs that wait, and the promised us, if any.
CLUSTERS = (
    (64, 1_000, 50_000.0),
    (64, 10_000, None),
    (1_000, 1_000, None),
    (1_000, 10_000, 50_000.0),
)
GPUS = 8  # of a node
GANG_EVENTS = 40
WIDTHS = (1, 1, 1, 2, 4, 8, 8, 16, 32, 64)
DEVICE = "device"
DEVICES = [(DEVICE, 1 << 40)]
DEMAND = _core.Demand(1 << 20, 1 << 22, True)


def crowd(count: int) -> tuple[_core.Host, str]:
    """Return a host with `count` sessions that have all asked, and the holder of the turn."""
    host = _core.Host(DEVICES)
    holder = ""
    for number in range(count):
        host.open(
            0.0, f"s{number}", [DEVICE], _core.SessionSpec(f"user{number % 50}", demand=DEMAND)
        )
        for grant in host.request(0.0, f"s{number}", 1).grants:
            holder = grant.session
    return host, holder


def decisions(count: int) -> list[float]:
    """Return seconds of each finish after which the next session has the turn."""
    host, holder = crowd(count)
    turn = dict.fromkeys((f"s{number}" for number in range(count)), 1)
    times, now = [], 0.0
    for _ in range(EVENTS):
        now += 0.25
        start = time.perf_counter()
        decision = host.finish(now, holder, turn[holder])
        times.append(time.perf_counter() - start)
        turn[holder] += 1
        host.request(now, holder, turn[holder])
        holder = decision.grants[0].session
    return times


def beside_a_crowd(count: int) -> list[float]:
    """Return seconds of each message of a neighbour that has a turn and gives it back."""
    host = _core.Host(DEVICES, "fair", BOOSTED)
    neighbour = _core.SessionSpec("neighbour", demand=DEMAND)
    host.open(0.0, "neighbour", [DEVICE], neighbour)
    host.request(0.0, "neighbour", 1)
    for number in range(count):
        host.open(0.0, f"s{number}", [DEVICE], _core.SessionSpec("one", demand=DEMAND, busy=False))
        host.set_busy(0.0, f"s{number}", True)
        host.request(0.0, f"s{number}", 1)
    times, now = [], 0.0
    for _ in range(EVENTS):
        now += 1e-4
        start = time.perf_counter()
        host.report(now, "neighbour", 1, DEMAND, None)
        times.append(time.perf_counter() - start)
    return times


def looks(waiting: int, idle: int) -> list[float]:
    """Return seconds of each look, one after each turn of three iterations; paces are known."""
    host, now = _core.Host(DEVICES, "fair", BOOSTED), 0.0
    turn = dict.fromkeys((f"s{number}" for number in range(waiting + idle)), 1)
    for number, name in enumerate(turn):
        spec = _core.SessionSpec(f"user{number % 5}", demand=DEMAND)
        host.open(now, name, [DEVICE], spec)
        host.request(now, name, 1)
        now += 0.3
        host.report(now, name, 3, DEMAND, None)
        host.finish(now, name, 1)
    wanting = [*turn][:waiting]
    granted = [host.request(now, name, 2).grants for name in wanting]
    turn |= dict.fromkeys(wanting, 2)
    holder = next(grants[0].session for grants in granted if grants)
    times = []
    for _ in range(EVENTS):
        now += 0.3
        host.report(now, holder, 3, DEMAND, None)
        following = host.finish(now, holder, turn[holder]).grants[0].session
        turn[holder] += 1
        host.request(now, holder, turn[holder])
        holder = following
        start = time.perf_counter()
        host.snapshot(DEVICE, now)
        times.append(time.perf_counter() - start)
    return times


def gang(number: int) -> _core.Gang:
    """One in four wants as few hosts as can be, and one in three has a skewed model."""
    width = WIDTHS[number % len(WIDTHS)]
    hosts = -(-width // GPUS) if number % 4 == 0 else 0
    return _core.Gang(f"g{number}", width, hosts=hosts, skew=0.9 if number % 3 == 0 else 0.1)


def cluster_decisions(nodes: int, count: int) -> list[float]:
    """Return seconds of each decision. Running gangs compute for a minute between two decisions, so
    queues change, and gangs are asked to yield, which they do."""
    rules = _core.GangRules(told=True, tick=0, thresholds=[3600.0], knob=8.0, least=30.0)
    queue = _core.ClusterQueue([GPUS] * nodes, "las", rules)
    for number in range(count):
        queue.request(0.0, gang(number))
    running = {grant.gang for grant in queue.assign(0.0).grants}
    times, now = [], 0.0
    for number in range(count, count + GANG_EVENTS):
        now += 60.0
        for name in running:
            queue.served(now, name, 60.0 * queue.progress(name).gang.devices)
        ended = min(running, key=lambda name: int(name[1:]))
        queue.close(now, ended)
        queue.request(now, gang(number))
        start = time.perf_counter()
        decision = queue.assign(now)
        times.append(time.perf_counter() - start)
        running |= {grant.gang for grant in decision.grants}
        running -= {ended, *decision.yields}
        for name in decision.yields:
            yielded = queue.progress(name).gang
            queue.finish(now, name)
            queue.request(now, yielded)
    return times


def main() -> int:
    figures = []
    for count in SESSIONS:
        figures.append(Figure(str(count), statistics.median(decisions(count)) * 1e6, "us"))
    for count, target in CROWDS.items():
        seconds = statistics.median(beside_a_crowd(count))
        figures.append(Figure(f"beside {count} of one user", seconds * 1e6, "us", target))
    for waiting, idle in LOOKS:
        seconds = statistics.median(looks(waiting, idle))
        figures.append(Figure(f"a look at {waiting} and {idle} idle", seconds * 1e6, "us"))
    for nodes, count, target in CLUSTERS:
        seconds = statistics.median(cluster_decisions(nodes, count))
        figures.append(Figure(f"{count} gangs, {nodes} nodes", seconds * 1e6, "us", target))
    return publish("decision_us", figures)


if __name__ == "__main__":
    sys.exit(main())
