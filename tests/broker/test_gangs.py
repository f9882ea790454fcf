"""Gangs on the devices of one host, beside sessions on one: all of their devices, or none."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare._core import Demand, GangRules, Rules, Scheduler, SessionSpec
from jupyter_gpushare.broker.gangs import Decision, Gangs
from jupyter_gpushare.wire.protocol import HOLDING, Open

GIB = 1 << 30
IN_TURN = GangRules(tick=0.5)
WITH_KNOB = GangRules(thresholds=[2.0], knob=2.0, tick=0.5)


class Host:
    """Devices, gangs, and one plain session on each device; what the broker would tell them."""

    def __init__(self, count: int, rules: GangRules = IN_TURN) -> None:
        self.names = [f"cuda:{number}" for number in range(count)]
        self.schedulers = {
            name: Scheduler(16 * GIB, "fair", Rules(quantum=0.25)) for name in self.names
        }
        self.gangs = Gangs(
            self.schedulers, enact=self.enact, grant=self.granted, ask=self.asks, rules=rules
        )
        self.now = 0.0
        self.on: dict[str, list[str]] = {}  # gang -> devices
        self.turns: dict[str, int] = {}
        self.has: set[str] = set()  # gangs and plain sessions that were told so
        self.asked: set[str] = set()
        self.grants: list[str] = []
        for name in self.names:
            spec = SessionSpec("p", demand=Demand(GIB, GIB))
            self.take(self.schedulers[name].open(0, name, spec))

    def take(self, decision: Decision) -> None:
        """As a broker does; afterwards all that must always hold is looked at."""
        self.enact(decision)
        self.gangs.assign(self.now)
        self.look()

    def enact(self, decision: Decision) -> None:
        for grant in decision.grants:
            if not self.gangs.keeps(grant):
                assert grant.turn == self.turns[grant.session]
                self.has.add(grant.session)
        for wish in decision.yields:
            if not self.gangs.hears(wish):
                self.asked.add(wish.session)

    def granted(self, gang: str, turn: int) -> None:
        assert gang not in self.has
        assert turn == self.turns[gang]
        self.has.add(gang)
        self.grants.append(gang)

    def asks(self, gang: str, turn: int) -> None:
        assert gang in self.has
        assert turn == self.turns[gang]
        assert gang not in self.asked  # once for each turn
        self.asked.add(gang)

    def look(self) -> None:
        assert all(scheduler.is_valid() == "" for scheduler in self.schedulers.values())
        used = [device for gang in self.on if gang in self.has for device in self.on[gang]]
        assert len(used) == len({*used})  # no device is had twice
        for gang, devices in self.on.items():
            assert (gang in self.has) == self.gangs.runs(gang)
            if gang in self.has:  # on all of them, and alone
                assert all(self.runs(device) == {gang} for device in devices)
                assert not self.has & {*devices}

    def runs(self, device: str) -> set[str]:
        picture = self.schedulers[device].picture(self.now)
        return {state.id for state in picture.sessions if state.state in HOLDING}

    def open(self, gang: str, devices: list[str]) -> None:
        self.on[gang] = devices
        spec = SessionSpec("g", demand=Demand(GIB, GIB), alone=True)
        self.take(self.gangs.open(self.now, spec, devices, Open(gang, gang)))

    def request(self, id: str) -> None:
        if id in self.has:
            return
        self.turns[id] = self.turns.get(id, 0) + 1
        if id in self.on:
            self.take(self.gangs.request(self.now, id, self.turns[id]))
        else:
            self.take(self.schedulers[id].request(self.now, id, self.turns[id]))

    def finish(self, id: str) -> None:
        self.has.discard(id)
        self.asked.discard(id)
        turn = self.turns.get(id, 0)
        if id in self.on:
            self.take(self.gangs.finish(self.now, id, turn))
        else:
            self.take(self.schedulers[id].finish(self.now, id, turn))

    def close(self, gang: str) -> None:
        self.has.discard(gang)
        self.asked.discard(gang)
        self.turns.pop(gang, None)
        del self.on[gang]
        self.take(self.gangs.close(self.now, gang))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for scheduler in self.schedulers.values():
            self.take(scheduler.assign(self.now))

    def obey(self) -> None:
        """Everybody who was asked to yield does, and wants the next turn."""
        for id in sorted(self.asked):
            self.finish(id)
            self.request(id)


subsets = st.sets(st.integers(0, 3), min_size=1)
steps = st.tuples(
    st.sampled_from(["request", "finish", "close", "time", "obey"]), st.integers(0, 6)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(subsets, min_size=1, max_size=4), st.lists(steps, max_size=60), st.booleans())
def test_a_gang_has_all_its_devices_alone_or_none(
    wanted: list[set[int]], path: list[tuple[str, int]], knob: bool
) -> None:
    host = Host(4, WITH_KNOB if knob else IN_TURN)
    gangs = [f"gang{number}" for number in range(len(wanted))]
    for gang, devices in zip(gangs, wanted, strict=True):
        host.open(gang, [host.names[number] for number in sorted(devices)])
    everybody = gangs + host.names
    for what, number in path:
        id = everybody[number % len(everybody)]
        if what == "time":
            host.pass_time(0.1 * number)
        elif what == "obey":
            host.obey()
        elif what == "close" and id in gangs:
            host.close(id)
            host.open(id, [host.names[number] for number in sorted(wanted[gangs.index(id)])])
        elif what != "close":
            getattr(host, what)(id)


@settings(max_examples=60, deadline=None)
@given(st.lists(subsets, min_size=1, max_size=4), st.integers(0, 2**20))
def test_all_who_want_turns_have_them_whichever_devices_they_have_in_common(
    wanted: list[set[int]], order: int
) -> None:
    """No deadlock, and nobody starves: everybody wants a turn again as soon as one is over."""
    host = Host(4, WITH_KNOB if order % 2 else IN_TURN)
    for number, devices in enumerate(wanted):
        host.open(f"gang{number}", [host.names[device] for device in sorted(devices)])
    everybody = [*host.on, *host.names]
    random.Random(order).shuffle(everybody)
    had: set[str] = set()
    for id in everybody:
        host.request(id)
    for _ in range(400):
        had |= host.has
        if had == {*everybody}:
            return
        host.obey()
        host.pass_time(0.1)
    raise AssertionError(f"{ {*everybody} - had } never had a turn")


def test_two_gangs_that_overlap_take_turns() -> None:
    host = Host(3)
    host.open("left", host.names[:2])
    host.open("right", host.names[1:])
    for gang in ("left", "right"):
        host.request(gang)
    assert host.has == {"left"}
    for _ in range(40):
        host.pass_time(0.25)
        host.obey()
    assert host.grants.count("right") > 1
    assert abs(host.grants.count("left") - host.grants.count("right")) <= 1


def test_what_is_granted_is_kept_until_the_last_device_has_granted() -> None:
    host = Host(2)
    host.request("cuda:1")
    host.open("both", host.names)
    host.request("both")
    assert host.has == {"cuda:1"}
    host.request("cuda:0")
    assert host.has == {"cuda:1"}  # the gang has that one by now
    host.pass_time(0.3)
    assert host.asked == {"cuda:1"}
    host.finish("cuda:1")
    assert host.has == {"both"}


def test_a_gang_that_is_lost_frees_all_its_devices_at_once() -> None:
    host = Host(2)
    host.open("both", host.names)
    host.request("both")
    for name in host.names:
        host.request(name)
    assert host.has == {"both"}
    host.close("both")
    assert host.has == {*host.names}


def test_who_withdraws_before_it_has_all_devices_gives_back_those_it_has() -> None:
    host = Host(2)
    host.request("cuda:1")
    host.open("both", host.names)
    host.request("both")
    host.request("cuda:0")
    host.finish("both")
    assert host.has == {"cuda:0", "cuda:1"}


def test_who_was_asked_by_one_device_yields_all_of_them() -> None:
    host = Host(2)
    host.open("both", host.names)
    host.request("both")
    host.request("cuda:1")
    host.pass_time(0.3)
    assert host.asked == {"both"}
    host.finish("both")
    assert host.has == {"cuda:1"}
