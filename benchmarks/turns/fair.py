"""How evenly device time is shared: Jain's index, 1 when all get the same, 1/n when one gets all.

The index over notebooks is that of the device time of five equal trainings in real processes,
started a second apart, while all five run. The index over users is that of the core in virtual
time: one user has three notebooks and two others have one each.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from measure import Figure, broker, jain, publish
from training import MODEL, trainers

from jupyter_gpushare import _core
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client

NOTEBOOKS = 5
SECONDS = 20.0
VIRTUAL_SECONDS = 600.0
ITERATION_SECONDS = 0.01
OWNERS = {"a1": "ann", "a2": "ann", "a3": "ann", "b1": "bob", "c1": "cleo"}


def device_seconds(client: Client) -> dict[str, float]:
    """Return the device time of every session so far."""
    sessions = client.look().devices[0].sessions
    return {session.name: session.device_seconds for session in sessions}


def over_notebooks(settings: Settings, client: Client) -> float:
    with trainers(settings, [MODEL] * NOTEBOOKS) as started:
        for trainer in started:
            trainer.start(0)
            time.sleep(1)
        before = device_seconds(client)
        time.sleep(SECONDS)
        after = device_seconds(client)
    return jain(after[name] - before[name] for name in after)


def over_users() -> float:
    """One session holds the device at a time and heeds a preemption request at its next
    boundary."""
    host = _core.Host([("device", 1 << 40)], "fair", _core.Rules(running_lanes=1))
    used, turn, holder, now = Counter[str](), Counter[str](), "", 0.0
    demand = _core.Demand(1 << 20, 1 << 22, True)
    for name, user in OWNERS.items():
        host.open(now, name, ["device"], _core.SessionSpec(user, demand=demand))
    for name in OWNERS:
        turn[name] += 1
        for grant in host.request(now, name, turn[name]).grants:
            holder = grant.session
    while now < VIRTUAL_SECONDS:
        now += ITERATION_SECONDS
        used[OWNERS[holder]] += 1
        if host.assign(now).yields:
            granted = host.finish(now, holder, turn[holder]).grants
            turn[holder] += 1
            host.request(now, holder, turn[holder])
            holder = granted[0].session
    return jain(used.values())


def main() -> int:
    with broker() as (settings, client):
        figures = [
            Figure("jain_notebooks", over_notebooks(settings, client), target=0.98, at_least=True),
            Figure("jain_users", over_users(), target=0.98, at_least=True),
        ]
    return publish("fair", figures)


if __name__ == "__main__":
    sys.exit(main())
