"""The queue's order, which time alone never changes."""

from __future__ import annotations

from random import Random

import pytest

from jupyter_gpushare._core import Decision, Demand, Rules, SessionSpec

from ..scheduler import POLICIES, Scheduler

MB = 1 << 20


def queue(it: Scheduler, now: float) -> list[str]:
    waiting = [state for state in it.snapshot(now).sessions if state.position is not None]
    return [state.id for state in sorted(waiting, key=lambda state: state.position or 0)]


class History:
    """Random events of a few notebooks; some are asked to yield, paused or closed."""

    def __init__(self, policy: str, seed: int) -> None:
        self.random = Random(seed)
        rules = Rules(
            half_life=self.random.choice([1.0, 30.0, 3600.0]),
            aging=self.random.choice([1.0, 60.0]),
            boost=self.random.choice([0.0, 0.5]),
            running_lanes=self.random.choice([0, 1, 2]),
        )
        self.it = Scheduler(100 * MB, policy, rules)
        self.now = 1e5 * self.random.random()
        self.turns = {f"n{number}": 0 for number in range(7)}
        self.running: set[str] = set()
        for id in self.turns:
            self.open(id)

    def open(self, id: str) -> None:
        random = self.random
        spec = SessionSpec(
            random.choice(["ada", "bob", "eve"]),
            group=random.choice(["", "class"]),
            weight=random.choice([1.0, 1.0, 3.0]),
            priority=random.choice([0, 0, 0, 1]),
            demand=Demand(random.choice([1, 20]) * MB, random.choice([1, 10]) * MB),
            remaining_iterations=random.choice([None, 10, 100]),
            turn=self.turns[id],
        )
        self.running.discard(id)
        self.take(self.it.open(self.now, id, spec))

    def take(self, decision: Decision) -> None:
        self.running |= {grant.session for grant in decision.grants}

    def happens(self) -> None:
        self.now += self.random.expovariate(3.0)
        id = self.random.choice(list(self.turns))
        events = [self.request] * 6 + [self.finish] * 5 + [self.report, self.change, self.open]
        self.random.choice(events)(id)
        assert self.it.is_valid() == ""

    def request(self, id: str) -> None:
        if id not in self.running:
            self.turns[id] += 1
            self.take(self.it.request(self.now, id, self.turns[id]))

    def finish(self, id: str) -> None:
        id = self.random.choice(sorted(self.running) or [id])
        self.running.discard(id)
        self.take(self.it.finish(self.now, id, self.turns[id]))

    def report(self, id: str) -> None:
        self.take(self.it.report(self.now, id, 3, Demand(MB, MB), None))

    def change(self, id: str) -> None:
        paused = self.random.random() < 0.2
        weight = self.random.choice([1.0, 2.0])
        self.take(self.it.change(self.now, id, weight=weight, paused=paused))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue_order_changes_by_events_and_never_by_time_alone(policy: str) -> None:
    longest = 0
    for seed in range(12):
        history = History(policy, seed)
        for _ in range(60):
            history.happens()
            it, now = history.it, history.now
            order = queue(it, now)
            longest = max(longest, len(order))
            until = min(it.next_event(now) or now + 10.0, now + 10.0)
            for part in (0.1, 0.35, 0.7, 0.99):
                later = now + part * (until - now)
                assert queue(it, later) == order
                history.now = later
                if decision := it.set_unmanaged(later, 0):  # a broker sets this ten times a second
                    # the time of a session is up, which explains what changes
                    history.take(decision)
                    break
                assert queue(it, later) == order
    assert longest > 3


def test_a_named_successor_comes_first() -> None:
    it = Scheduler(100 * MB, "fair", Rules(half_life=1.0))
    for id in ("a", "b", "c"):
        it.open(0, id, SessionSpec("ada", demand=Demand(MB, MB)))
        it.request(0, id, 1)
    (asked,) = it.assign(0.25).yields
    assert (asked.session, asked.successor and asked.successor.session) == ("a", "b")
    it.change(0.3, "c", weight=1.0, priority=1)
    assert queue(it, 0.3) == ["b", "c"]
    assert [grant.session for grant in it.finish(0.4, "a", 1).grants] == ["b"]
