"""The queue of the gangs of a cluster, beside a plain one in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import ClusterQueue, Gang, GangDecision, GangProgress, GangRules
from jupyter_gpushare.cluster.queues.gangs import KEPT

from ..searches import tries

INSTANT = 1e-6


@dataclass
class Member:
    """What the reference knows of a gang."""

    gang: Gang
    stays: bool = False
    queue: int = 0
    ticket: int = 0
    run: float = 0
    waited: float = 0
    served: float = 0
    holds: list[int] = field(default_factory=list)
    wants: bool = False
    asked: bool = False
    started: bool = False
    keeps_free: bool = False
    kept_free: float = 0

    @property
    def attained(self) -> float:
        return self.gang.devices * self.run


class Reference:
    """The rules, one after the other, with reported service and the least attained service first:
    hosts come and go, gangs stay or want few hosts, and places are reserved."""

    left: list[int]  # of each host, what no chosen gang has and is not reserved
    in_all: int  # the same, less what gangs of any hosts wait for
    free: list[int]
    reserved: list[int]
    is_chosen: list[Member]
    skipped: list[Member]

    def __init__(self, hosts: Sequence[int], rules: dict[str, Any]) -> None:
        self.hosts = list(hosts)
        self.thresholds: list[float] = rules["thresholds"]
        self.knob: float = rules["knob"]
        self.least: float = rules["least"]
        self.known: dict[str, Member] = {}
        self.present: list[Member] = []
        self.now = 0.0
        self.tickets = 0

    def advance(self, now: float) -> None:
        for each in self.present:
            if each.wants and each.run > 0:
                each.waited += now - self.now
            if each.keeps_free:
                each.kept_free += now - self.now
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
            member.stays = gang.stays
            self.present.append(member)

    def may_stop(self, now: float, id: str) -> None:
        self.advance(now)
        member = self.known[id]
        if member.stays:
            member.stays = member.asked = False

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
        member.keeps_free, member.kept_free = False, 0
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
        for each in self.present:
            each.keeps_free = False

    def is_young(self, member: Member) -> bool:
        return self.least - member.served > INSTANT

    def keeps_from(self, skipped: Sequence[Member], member: Member) -> bool:
        """Whether devices are kept for the first one that is skipped, from this one."""
        if not member.started or not skipped or not fits(skipped[0].gang, self.hosts):
            return False
        if self.least - skipped[0].kept_free <= INSTANT:
            return False
        skipped[0].keeps_free = True
        return True

    def start(self, member: Member, holds: list[int]) -> list[int]:
        member.holds, member.started = holds, True
        member.wants = member.asked = False
        member.served = member.kept_free = 0
        return holds

    def set_hosts(self, now: float, hosts: Sequence[int]) -> None:
        self.advance(now)
        self.hosts = list(hosts)
        for each in self.present:
            each.holds += [0] * (len(hosts) - len(each.holds)) if each.holds else []

    def used(self) -> list[int]:
        holders = [each.holds for each in self.present if each.holds]
        return [sum(holds[host] for holds in holders) for host in range(len(self.hosts))]

    def assign(self, now: float) -> tuple[dict[str, list[int]], list[str]]:
        self.advance(now)
        self.requeue()
        self.left, self.in_all = list(self.hosts), sum(self.hosts)
        self.free = [max(0, h - u) for h, u in zip(self.hosts, self.used(), strict=True)]
        self.reserved = [0] * len(self.hosts)
        self.is_chosen, self.skipped = [], []
        for each in self.present:
            is_young = self.is_young(each) and not each.asked
            if each.holds and (each.stays or is_young):
                self.choose(each)
        grants: dict[str, list[int]] = {}
        yields = []
        for each in [each for each in self.present if each not in self.is_chosen]:
            if each.wants:
                self.wait(each, grants)
            elif not self.choose(each) and not each.asked:
                each.asked = True
                yields.append(each.gang.id)
        return grants, yields

    def choose(self, member: Member) -> bool:
        there = all(holds <= left for holds, left in zip(member.holds, self.left, strict=True))
        if not there or member.gang.devices > self.in_all:
            return False
        self.left = [left - holds for left, holds in zip(self.left, member.holds, strict=True)]
        self.in_all -= member.gang.devices
        self.is_chosen.append(member)
        return True

    def wait(self, member: Member, grants: dict[str, list[int]]) -> None:
        gang = member.gang
        if gang.devices > self.in_all or not fits(gang, self.left):
            self.skipped.append(member)
            return
        now_free = common(self.free, self.left)
        if fits(gang, now_free) and self.keeps_from(self.skipped, member):
            return
        self.in_all -= gang.devices
        if fits(gang, now_free):
            grants[gang.id] = self.start(member, chosen(gang, now_free))
            self.is_chosen.append(member)
            self.free = [f - h for f, h in zip(self.free, member.holds, strict=True)]
            self.left = [left - h for left, h in zip(self.left, member.holds, strict=True)]
        elif gang.hosts > 0:
            places = self.reserve(member)
            self.reserved = [r + p for r, p in zip(self.reserved, places, strict=True)]
            self.left = [left - p for left, p in zip(self.left, places, strict=True)]

    def reserve(self, member: Member) -> list[int]:
        """Reserve free devices and those of gangs that are asked, then those of one more of the
        last gangs each time."""
        behind = self.present[self.present.index(member) :]
        holders = [each for each in self.present if each.holds and each not in self.is_chosen]
        asked = [each for each in holders if each.asked]
        others = [each for each in behind if each in holders and each not in asked]
        for count in range(len(others) + 1):
            reach = [f - r for f, r in zip(self.free, self.reserved, strict=True)]
            for each in asked + others[len(others) - count :]:
                reach = [r + h for r, h in zip(reach, each.holds, strict=True)]
            if fits(member.gang, common(reach, self.left)):
                return chosen(member.gang, common(reach, self.left))
        raise AssertionError("what is left is of gangs that are asked or come later, or is free")


def chosen(gang: Gang, there: Sequence[int]) -> list[int]:
    """The devices of each host that the gang gets of those that are there."""
    order = sorted(range(len(there)), key=lambda host: there[host])
    if gang.skew > 0.5 or gang.hosts > 0:
        holding = [host for host in order if there[host] >= gang.devices]
        order = holding or sorted(range(len(there)), key=lambda host: -there[host])
    holds = [0] * len(there)
    missing = gang.devices
    for host in order:
        holds[host] = min(missing, there[host])
        missing -= holds[host]
    return holds


def common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [max(0, min(pair)) for pair in zip(one, other, strict=True)]


def fits(gang: Gang, there: Sequence[int]) -> bool:
    return sum(sorted(there)[-gang.hosts :]) >= gang.devices  # 0: of all


def shown(decision: GangDecision) -> tuple[dict[str, list[int]], list[str]]:
    return {grant.gang: grant.devices for grant in decision.grants}, decision.yields


OFTEN = ("request", "all", "served", "served", "yield", "yield", "may_stop", "finish", "close")
# What happens to a gang: the event, which gang, and a number of quarters of a second. In an `all`,
# each gang wants devices.
EVENT = st.tuples(st.sampled_from(OFTEN), st.integers(0, 7), st.integers(0, 20))
# A host that has a number of devices of its own from then on, or a new one.
HOST_EVENT = st.tuples(st.just("host"), st.integers(0, 4), st.integers(0, 4))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Gang], list[int]]:
    """Gangs; some of them stay, and some want few hosts."""
    hosts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    gangs = []
    for number in range(8):
        few = draw(st.sampled_from([0, 0, 1, 2]))
        most = sum(sorted(hosts)[-few:])
        skew, stays = draw(st.sampled_from([0.1, 0.9])), draw(st.integers(0, 9)) == 0
        devices = draw(st.integers(1, most))
        gangs.append(Gang(str(number), devices, skew=skew, hosts=few, stays=stays))
    return gangs, hosts


RULES = st.fixed_dictionaries(
    {
        "thresholds": st.sampled_from([[], [4.0], [2.0, 8.0]]),
        "knob": st.sampled_from([0.0, 0.5, 2.0]),
        "least": st.sampled_from([0.0, 1.0, 4.0]),
    }
)


def happens(both: Sequence[Any], now: float, event: str, gang: Gang, quarters: int) -> None:
    """Tell each of them of an event, where it can be."""
    if event == "request":
        for each in both:
            each.request(now, gang)
    elif gang.id in both[0]:
        holds = both[0].progress(gang.id).holds
        for each in both:
            if event == "served":
                each.served(now, gang.id, quarters * 0.25 * gang.devices)
            elif event in ("finish", "close", "may_stop"):
                getattr(each, event)(now, gang.id)
            elif event == "yield" and holds:
                each.finish(now, gang.id)
                each.request(now, gang)


@dataclass
class Story:
    """Gangs on hosts, with rules, and what happens there."""

    gangs: list[Gang]
    hosts: list[int]
    rules: dict[str, Any]
    events: list[tuple[str, int, int]]

    def queue(self) -> ClusterQueue:
        return told(self.hosts, **self.rules)

    def told_to(self, both: Sequence[Any]) -> Iterator[float]:
        """Tell both of each event, and yield the time at which they are to decide."""
        now = 0.0
        for event, number, quarters in self.events:
            now += quarters * 0.25
            if event == "host":
                self.hosts[number : number + 1] = [quarters]
                for each in both:
                    each.set_hosts(now, self.hosts)
            elif event == "all":
                for gang in self.gangs:
                    happens(both, now, "request", gang, quarters)
            else:
                happens(both, now, event, self.gangs[number], quarters)
            yield now


@st.composite
def stories(draw: st.DrawFn) -> Story:
    events = draw(st.lists(EVENT | HOST_EVENT, max_size=60))
    return Story(*draw(clusters()), draw(RULES), events)


@tries(150)
@given(stories())
def test_gangs_and_their_places_are_chosen_as_the_reference_has_it(story: Story) -> None:
    """Hosts come and go."""
    queue, reference = story.queue(), Reference(story.hosts, story.rules)
    for now in story.told_to([queue, reference]):
        before = over_committed(reference)
        decision = queue.assign(now)
        assert shown(decision) == reference.assign(now)
        assert queue.is_valid() == ""
        for grant in decision.grants:
            gang = story.gangs[int(grant.gang)]
            assert sum(grant.devices) == gang.devices
            assert not gang.hosts or sum(each > 0 for each in grant.devices) <= gang.hosts
        assert over_committed(reference) == before  # no grant takes what is not there
        if not any(before):
            assert not any(reference.known[id].stays for id in decision.yields)
        for id, member in reference.known.items():
            progress = queue.progress(id)
            for name in ("queue", "attained", "holds", "asked", "keeps_free", "kept_free"):
                assert getattr(progress, name) == getattr(member, name), name


class InParts:
    """A queue that counts each device in this number of parts."""

    def __init__(self, hosts: list[int], parts: int, rules: dict[str, Any]) -> None:
        self._parts = parts
        in_parts = GangRules(told=True, tick=0, **rules).in_parts(parts)
        self._queue = ClusterQueue([parts * there for there in hosts], "las", in_parts)

    def __contains__(self, id: str) -> bool:
        return id in self._queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def request(self, now: float, gang: Gang) -> None:
        devices = gang.devices * self._parts
        stays, skew, hosts = gang.stays, gang.skew, gang.hosts
        self._queue.request(now, Gang(gang.id, devices, skew=skew, hosts=hosts, stays=stays))

    def served(self, now: float, id: str, more: float) -> None:
        self._queue.served(now, id, more * self._parts)

    def set_hosts(self, now: float, hosts: Sequence[int]) -> None:
        self._queue.set_hosts(now, [self._parts * there for there in hosts])

    def shown(self, now: float) -> tuple[dict[str, list[int]], list[str]]:
        grants, yields = shown(self._queue.assign(now))
        whole = {id: [each // self._parts for each in devices] for id, devices in grants.items()}
        return whole, yields


@tries(60)
@given(stories(), st.integers(2, 100))
def test_a_queue_that_counts_parts_of_devices_decides_as_one_of_whole_ones(
    story: Story, parts: int
) -> None:
    whole, in_parts = story.queue(), InParts(story.hosts, parts, story.rules)
    for now in story.told_to([whole, in_parts]):
        assert shown(whole.assign(now)) == in_parts.shown(now)
        assert in_parts.is_valid() == ""


def over_committed(reference: Reference) -> list[int]:
    used = zip(reference.used(), reference.hosts, strict=True)
    return [max(0, use - there) for use, there in used]


def kept(progress: GangProgress) -> dict[str, Any]:
    """Return the fields that a journal keeps, and those that follow from its job."""
    return {name: getattr(progress, name) for name in (*KEPT, "holds", "wants", "asked")}


@pytest.mark.system
@tries(100)
@given(stories(), st.sampled_from(["las", "gittins", "srsf"]), st.randoms())
def test_a_queue_that_is_restored_decides_as_the_one_before_it(
    story: Story, policy: str, random: Random
) -> None:
    """At each step there is a new one, to which gangs come back in any order."""
    made = GangRules(told=True, tick=0, known=[3.0, 9.0, 30.0], quantum=3.0, **story.rules)
    unbroken, largest = ClusterQueue(story.hosts, policy, made), list(story.hosts)
    both = [unbroken, ClusterQueue(story.hosts, policy, made)]
    for now in story.told_to(both):
        largest = [max(pair) for pair in zip_longest(largest, story.hosts, fillvalue=0)]
        before, restored = both[1], ClusterQueue(largest, policy, made)
        for each in (before, restored):  # no time passes between the last event and the restart
            each.set_hosts(now, story.hosts)
        for gang in random.sample(story.gangs, len(story.gangs)):
            if gang.id in before:
                progress = before.progress(gang.id)
                restored.restore(now, GangProgress(progress.gang, **kept(progress)))
        both[1] = restored
        assert shown(restored.assign(now)) == shown(unbroken.assign(now))
        assert restored.next_event() == unbroken.next_event()
        assert restored.is_valid() == ""
        for gang in [gang for gang in story.gangs if gang.id in unbroken]:
            one, other = kept(unbroken.progress(gang.id)), kept(restored.progress(gang.id))
            assert {**one, "ticket": 0} == {**other, "ticket": 0}


def test_a_gang_that_the_engine_has_split_its_own_way_has_those_devices() -> None:
    queue = told([4, 4, 4], thresholds=[1.0])
    queue.request(0, Gang("a", 8))
    assert shown(queue.assign(0)) == ({"a": [4, 4, 0]}, [])
    queue.moved(1, "a", [4, 3, 1])
    assert queue.is_valid() == ""
    queue.request(1, Gang("b", 4, skew=0.9))
    assert shown(queue.assign(1)) == ({"b": [0, 1, 3]}, [])


def test_a_gang_is_restored_although_its_hosts_are_not_back() -> None:
    queue = told([0])
    queue.restore(5, GangProgress(Gang("runs"), holds=[1], started=True, ticket=1))
    queue.restore(5, GangProgress(Gang("waits", 2), wants=True, ticket=2))
    assert shown(queue.assign(5)) == ({}, ["runs"])
    queue.set_hosts(6, [3, 1])
    queue.request(6, Gang("new", 3))
    assert shown(queue.assign(6)) == ({"waits": [1, 1]}, [])
    assert [queue.progress(id).ticket for id in ("runs", "waits", "new")] == [1, 2, 3]


def test_a_gang_that_is_restored_with_fewer_thresholds_is_in_the_last_queue() -> None:
    queue = told(thresholds=[4.0])
    queue.restore(0, GangProgress(Gang("a"), queue=7, run=2.0, wants=True))
    assert queue.progress("a").queue == 1


def told(hosts: Sequence[int] = (2,), **rules: Any) -> ClusterQueue:
    return ClusterQueue(hosts, "las", GangRules(told=True, tick=0, **rules))


def test_service_that_is_told_after_the_turn_counts() -> None:
    queue = told(thresholds=[4.0])
    queue.request(0, Gang("a", 2))
    queue.assign(0)
    queue.finish(1, "a")
    queue.served(2, "a", 6)
    progress = queue.progress("a")
    assert (progress.attained, progress.executed, progress.served) == (6, 3, 0)


def test_devices_are_kept_for_the_first_that_waits_for_the_least_of_a_turn() -> None:
    """`wide` was stopped for `short`, which runs and may end soon. `stopped`, which has had a turn
    too, would have the devices meanwhile."""
    queue = told([4], thresholds=[4.0], least=3.0)
    for now, id, devices in ((0, "wide", 4), (10, "stopped", 3)):
        queue.request(now, Gang(id, devices))
        queue.assign(now)
        queue.served(now + 5, id, 20)
        queue.finish(now + 6, id)
    queue.request(20, Gang("short"))
    assert shown(queue.assign(20)) == ({"short": [1]}, [])
    for id, devices in (("wide", 4), ("stopped", 3)):
        queue.request(21, Gang(id, devices))
    assert shown(queue.assign(21)) == ({}, [])
    assert queue.progress("wide").keeps_free
    assert queue.next_event() == 24
    assert shown(queue.assign(23.5)) == ({}, [])
    queue.finish(23.9, "short")
    assert shown(queue.assign(23.9)) == ({"wide": [4]}, [])


def test_the_least_of_a_turn_is_an_event_where_time_is_service() -> None:
    queue = ClusterQueue([1], "las", GangRules(thresholds=[1.0], tick=0, least=3.0))
    queue.request(0, Gang("a"))
    queue.assign(0)
    queue.request(0.5, Gang("b"))
    assert shown(queue.assign(1)) == ({}, [])
    assert queue.next_event() == 3
    assert shown(queue.assign(3)) == ({}, ["a"])


@pytest.mark.parametrize("has_devices", [False, True])
def test_a_gang_that_may_stop_is_asked_for_a_younger_one(has_devices: bool) -> None:
    """A gang that stays can be stopped from then on, whether or not it has devices by then."""
    queue = told([2], thresholds=[1.0])
    queue.request(0, Gang("old", 2, stays=True))
    if not has_devices:
        queue.may_stop(0, "old")
    queue.assign(0)
    queue.served(1, "old", 50)
    queue.request(1, Gang("young", 2))
    if has_devices:
        assert shown(queue.assign(1)) == ({}, [])
        queue.may_stop(2, "old")
    assert shown(queue.assign(2)) == ({}, ["old"])
    with pytest.raises(KeyError):
        queue.may_stop(3, "unknown")


def test_a_gang_that_was_asked_before_it_may_stop_is_asked_once_more() -> None:
    queue = told()
    queue.request(0, Gang("a", 2, stays=True))
    queue.assign(0)
    queue.set_hosts(1, [0])
    assert shown(queue.assign(1)) == ({}, ["a"])
    for now, asked in ((2, ["a"]), (3, [])):
        queue.may_stop(now, "a")
        assert shown(queue.assign(now)) == ({}, asked)


def test_gangs_wait_where_there_is_no_host_yet() -> None:
    queue = told([])
    queue.set_hosts(1, [0, 2])
    queue.request(1, Gang("a", 2))
    queue.set_hosts(2, [0, 0])
    queue.request(2, Gang("b", 2))  # there have been two
    assert shown(queue.assign(2)) == ({}, [])
    queue.set_hosts(3, [2, 0])
    assert shown(queue.assign(3)) == ({"a": [2, 0]}, [])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: told([0]).request(0, Gang("a")), "'a' wants more devices than there are"),
        (
            lambda: told([2, 1]).request(0, Gang("a", 3, hosts=1)),
            "'a' wants more devices than 1 host has",
        ),
        (lambda: told().request(0, Gang("a", hosts=-1)), "no number of hosts below 0"),
        (lambda: told([2, 1]).set_hosts(0, [2]), "a host is never forgotten"),
        (lambda: told().set_hosts(0, [-1]), "a host must not have fewer devices than none"),
        (lambda: told().set_hosts(0, [10**6 + 1]), "at most 1000000 devices"),
        (lambda: with_one().moved(0, "a", [2]), "as many devices as it was granted"),
        (lambda: with_running().moved(0, "a", [1]), "as many devices as it was granted"),
        (lambda: with_running().moved(0, "a", [3, -1]), "as many devices as it was granted"),
        (lambda: restored(Gang("a", 2), holds=[1]), "all its devices, or none"),
        (lambda: restored(Gang("a", 2), holds=[1, 1, 0]), "all its devices, or none"),
        (lambda: restored(Gang("a"), holds=[1], wants=True), "must not wait and run at once"),
        (lambda: restored(Gang("a"), run=-1.0), "times of 'a' must be finite"),
        (lambda: restored(Gang("a", 0)), "'a' must have a device"),
        (lambda: with_one().restore(0, GangProgress(Gang("a"))), "'a' is there already"),
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


def with_running() -> ClusterQueue:
    queue = with_one()
    queue.assign(0)
    return queue


def restored(gang: Gang, **kept: Any) -> ClusterQueue:
    queue = told([2])
    queue.restore(0, GangProgress(gang, **kept))
    return queue
