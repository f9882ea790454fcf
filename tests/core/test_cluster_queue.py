"""The queue of the gangs of a cluster, beside a plain one in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare._core import ClusterQueue, Gang, GangDecision, GangRules

INSTANT = 1e-6


@dataclass
class Member:
    """What the reference knows of a gang."""

    gang: Gang
    queue: int = 0
    ticket: int = 0
    run: float = 0
    waited: float = 0
    served: float = 0
    holds: list[int] = field(default_factory=list)
    wants: bool = False
    asked: bool = False

    @property
    def attained(self) -> float:
        return self.gang.devices * self.run


class Reference:
    """The rules one after the other, where service is told; the least attained service is first."""

    def __init__(self, hosts: Sequence[int], rules: dict[str, Any]) -> None:
        self.hosts = list(hosts)
        self.thresholds: list[float] = rules.get("thresholds", [])
        self.knob: float = rules.get("knob", 0)
        self.least: float = rules.get("least", 0)
        self.known: dict[str, Member] = {}
        self.present: list[Member] = []
        self.now = 0.0
        self.tickets = 0

    def advance(self, now: float) -> None:
        for each in self.present:
            if each.wants and each.run > 0:
                each.waited += now - self.now
        self.now = now

    def enter(self, member: Member, queue: int) -> None:
        self.tickets += 1
        member.queue, member.ticket = queue, self.tickets

    def request(self, now: float, gang: Gang) -> None:
        self.advance(now)
        if gang.id not in self.known:
            self.known[gang.id] = Member(gang)
            self.enter(self.known[gang.id], 0)
        member = self.known[gang.id]
        if not member.wants and not member.holds:
            member.gang, member.wants = gang, True
            self.present.append(member)

    def served(self, now: float, id: str, more: float) -> None:
        self.advance(now)
        member = self.known[id]
        member.run += more / member.gang.devices
        if member.holds:
            member.served += more / member.gang.devices

    def finish(self, now: float, id: str) -> None:
        self.advance(now)
        member = self.known[id]
        member.holds, member.wants = [], False
        self.present = [each for each in self.present if each is not member]

    def close(self, now: float, id: str) -> None:
        self.finish(now, id)
        del self.known[id]

    def requeue(self) -> None:
        for each in self.present:
            below = sum(each.attained + INSTANT * each.gang.devices >= t for t in self.thresholds)
            if below > each.queue:
                self.enter(each, below)
        for each in self.present:
            starves = self.knob > 0 and each.wants and each.queue > 0
            if starves and self.knob * each.run - each.waited <= INSTANT:
                each.run = each.waited = 0
                self.enter(each, 0)
        if self.thresholds:
            self.present.sort(key=lambda each: (each.queue, each.ticket))
        else:
            self.present.sort(key=lambda each: (each.attained, each.ticket))

    def is_young(self, member: Member) -> bool:
        return self.least - member.served > INSTANT

    def assign(self, now: float) -> tuple[dict[str, list[int]], list[str]]:
        """Where gangs may have devices of any hosts: each is chosen by its number of devices."""
        self.advance(now)
        self.requeue()
        left = sum(self.hosts)
        free = left - sum(sum(each.holds) for each in self.present)
        kept = [m for m in self.present if m.holds and not m.asked and self.is_young(m)]
        left -= sum(sum(each.holds) for each in kept)
        started: list[Member] = []
        yields: list[str] = []
        for each in self.present:
            if each in kept:
                continue
            if each.gang.devices > left:
                if each.holds and not each.asked:
                    each.asked = True
                    yields.append(each.gang.id)
                continue
            left -= each.gang.devices
            if each.wants and each.gang.devices <= free:
                free -= each.gang.devices
                started.append(each)
        return {each.gang.id: self.place(each) for each in started}, yields

    def place(self, member: Member) -> list[int]:
        used = [sum(each.holds[h] for each in self.present if each.holds) for h in self.indices()]
        there = [have - use for have, use in zip(self.hosts, used, strict=True)]
        member.holds = chosen(member.gang, there)
        member.wants = member.asked = False
        member.served = 0
        return member.holds

    def indices(self) -> range:
        return range(len(self.hosts))


def chosen(gang: Gang, there: Sequence[int]) -> list[int]:
    """The devices of each host that the gang gets of those that are there."""
    order = sorted(range(len(there)), key=lambda host: there[host])
    if gang.skew > 0.5:
        holding = [host for host in order if there[host] >= gang.devices]
        order = holding or sorted(range(len(there)), key=lambda host: -there[host])
    holds = [0] * len(there)
    missing = gang.devices
    for host in order:
        holds[host] = min(missing, there[host])
        missing -= holds[host]
    return holds


def shown(decision: GangDecision) -> tuple[dict[str, list[int]], list[str]]:
    return {grant.gang: grant.devices for grant in decision.grants}, decision.yields


# What happens to a gang: the event, which gang, and a number of quarters of a second.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["request", "served", "served", "yield", "finish", "close", "wait"]),
        st.integers(0, 7),
        st.integers(0, 20),
    ),
    max_size=60,
)


@st.composite
def gangs_on_hosts(draw: st.DrawFn) -> tuple[list[Gang], list[int]]:
    hosts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    widths = st.integers(1, sum(hosts))
    gangs = [Gang(str(n), draw(widths), skew=draw(st.sampled_from([0.1, 0.9]))) for n in range(8)]
    return gangs, hosts


RULES = st.fixed_dictionaries(
    {
        "thresholds": st.sampled_from([[], [4.0], [2.0, 8.0]]),
        "knob": st.sampled_from([0.0, 0.5, 2.0]),
        "least": st.sampled_from([0.0, 1.0]),
    }
)


def happens(both: Sequence[Any], now: float, event: str, gang: Gang, quarters: int) -> None:
    """Tell each of them of an event, where it can be."""
    if event == "request":
        for each in both:
            each.request(now, gang)
    elif gang.id in both[0]:
        for each in both:
            if event == "served":
                each.served(now, gang.id, quarters * 0.25 * gang.devices)
            elif event in ("finish", "close"):
                getattr(each, event)(now, gang.id)
            elif event == "yield":
                each.finish(now, gang.id)
                each.request(now, gang)


@settings(max_examples=300, deadline=None)
@given(gangs_on_hosts(), RULES, EVENTS)
def test_gangs_of_any_hosts_are_chosen_by_their_number_of_devices(
    there: tuple[list[Gang], list[int]],
    rules: dict[str, Any],
    events: list[tuple[str, int, int]],
) -> None:
    gangs, hosts = there
    queue = ClusterQueue(hosts, "las", GangRules(told=True, tick=0, **rules))
    reference = Reference(hosts, rules)
    now = 0.0
    for event, number, quarters in events:
        now += quarters * 0.25
        happens([queue, reference], now, event, gangs[number], quarters)
        assert shown(queue.assign(now)) == reference.assign(now)
        assert queue.is_valid() == ""
        for id, member in reference.known.items():
            progress = queue.progress(id)
            assert (progress.queue, progress.attained) == (member.queue, member.attained)
            assert (progress.holds, progress.asked) == (member.holds, member.asked)


def told(hosts: Sequence[int] = (2,), **rules: Any) -> ClusterQueue:
    return ClusterQueue(hosts, "las", GangRules(told=True, tick=0, **rules))


def test_time_is_no_service_where_service_is_told() -> None:
    queue = told(thresholds=[4.0])
    queue.request(0, Gang("a", 2))
    queue.request(0, Gang("b", 2))
    queue.assign(0)
    assert queue.next_event() is None
    assert shown(queue.assign(1000)) == ({}, [])
    queue.served(1001, "a", 4)
    assert queue.progress("a").attained == 4
    assert shown(queue.assign(1001)) == ({}, ["a"])


def test_service_that_is_told_after_the_turn_counts() -> None:
    queue = told(thresholds=[4.0])
    queue.request(0, Gang("a", 2))
    queue.assign(0)
    queue.finish(1, "a")
    queue.served(2, "a", 6)
    progress = queue.progress("a")
    assert (progress.attained, progress.executed, progress.served) == (6, 3, 0)


def test_a_turn_computes_for_its_least_before_it_is_asked_to_yield() -> None:
    queue = told(thresholds=[1.0], least=3.0)
    queue.request(0, Gang("a", 2))
    queue.assign(0)
    queue.request(1, Gang("b", 2))
    queue.served(9, "a", 5)  # 2.5 s
    assert shown(queue.assign(9)) == ({}, [])
    queue.served(10, "a", 1)
    assert shown(queue.assign(10)) == ({}, ["a"])


def test_the_least_of_a_turn_is_an_event_where_time_is_service() -> None:
    queue = ClusterQueue([1], "las", GangRules(thresholds=[1.0], tick=0, least=3.0))
    queue.request(0, Gang("a"))
    queue.assign(0)
    queue.request(0.5, Gang("b"))
    assert shown(queue.assign(1)) == ({}, [])
    assert queue.next_event() == 3
    assert shown(queue.assign(3)) == ({}, ["a"])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: told(least=-1), "the least of a turn"),
        (lambda: told().served(0, "a", 1), "no gang 'a' is known"),
        (lambda: with_one().served(0, "a", -1), "the service of 'a' must be finite"),
        (lambda: with_one().served(0, "a", float("inf")), "the service of 'a' must be finite"),
        (lambda: with_one(told=False).served(0, "a", 1), "only where the rules say so"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, KeyError), match=sentence):
        call()


def with_one(**rules: Any) -> ClusterQueue:
    queue = ClusterQueue([2], "las", GangRules(**{"told": True, **rules}))
    queue.request(0, Gang("a", 2))
    return queue
