"""All devices of a host: placement, gangs on several of them, and sessions on one beside these."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare._core import Decision, Demand, Host, Reason, Rules, SessionSpec
from jupyter_gpushare.reasons import sentence

from ..scheduler import POLICIES, Scheduler
from ..searches import tries

GIB = 1 << 30
BY_CLASS = Reason("throttled_for_class", who="course")
RULES = Rules(quantum=0.25, aging=5.0)


class Driver:
    """Devices, gangs, and one plain session on each device, with all messages that they got."""

    def __init__(self, count: int, policy: str = "fair") -> None:
        self.names = [f"cuda:{number}" for number in range(count)]
        self.host = Host([(name, 16 * GIB) for name in self.names], policy, RULES)
        self.now = 0.0
        self.on: dict[str, list[str]] = {}
        self.turns: dict[str, int] = {}
        self.has: set[str] = set()
        self.asked: set[str] = set()
        self.granted: list[str] = []
        self.seconds: Counter[str] = Counter()
        for name in self.names:
            self.open(name, [name], user="p")

    def take(self, decision: Decision) -> None:
        """Enact as a broker does; afterwards all invariants are checked."""
        for grant in decision.grants:
            assert grant.session not in self.has
            assert grant.turn == self.turns[grant.session]
            self.has.add(grant.session)
            self.granted.append(grant.session)
        for wish in decision.yields:
            assert wish.session in self.has
            assert wish.session not in self.asked  # once for each turn
            assert wish.turn == self.turns[wish.session]
            self.asked.add(wish.session)
        self.look()

    def look(self) -> None:
        assert self.host.is_valid() == ""
        used = [device for id in self.has for device in self.on[id]]
        assert len(used) == len({*used})  # no device is had twice
        for id, devices in self.on.items():
            for device in devices:
                state = self.state(id, device).state
                assert (state in ("running", "overdue")) == (id in self.has)

    def state(self, id: str, device: str) -> Any:
        sessions = self.host.snapshot(device, self.now).sessions
        return next(state for state in sessions if state.id == id)

    def open(self, id: str, devices: Sequence[str], **said: Any) -> None:
        self.on[id] = [*devices]
        self.has.discard(id)
        self.asked.discard(id)
        if said.get("holding"):
            self.has.add(id)
            self.turns[id] = said["turn"]
        spec = SessionSpec(**{"user": "g", "demand": Demand(GIB, GIB), **said})
        self.take(self.host.open(self.now, id, self.on[id], spec))

    def request(self, id: str) -> None:
        if id not in self.has:
            self.turns[id] = self.turns.get(id, 0) + 1
            self.take(self.host.request(self.now, id, self.turns[id]))

    def finish(self, id: str) -> None:
        self.has.discard(id)
        self.asked.discard(id)
        self.take(self.host.finish(self.now, id, self.turns.get(id, 0)))

    def close(self, id: str) -> None:
        self.has.discard(id)
        self.asked.discard(id)
        del self.on[id]
        self.take(self.host.close(self.now, id))

    def pass_time(self, seconds: float) -> None:
        """Advance as a broker that wakes when something is due."""
        end = self.now + seconds
        while (due := self.host.next_event(self.now)) is not None and due <= end:
            self.until(max(self.now, due))
        self.until(end)

    def until(self, time: float) -> None:
        for id in self.has:
            self.seconds[id] += time - self.now
        self.now = time
        self.take(self.host.assign(self.now))

    def obey(self) -> None:
        """Every session that was asked to yield does, and wants the next turn."""
        for id in sorted(self.asked):
            self.finish(id)
            self.request(id)

    def contend(self, ids: Sequence[str], seconds: float) -> None:
        """All of these want turns, one after the other, in iterations of 0.1 seconds."""
        for id in ids:
            self.request(id)
        for _ in range(round(seconds / 0.1)):
            self.pass_time(0.1)
            self.obey()


# --- one scheduler for a host -------------------------------------------------------------------


def told(decision: Decision) -> tuple[list[Any], ...]:
    return (
        [(grant.session, grant.turn, grant.lane) for grant in decision.grants],
        [
            (wish.session, wish.turn, wish.successor and wish.successor.session)
            for wish in decision.yields
        ],
        [*decision.page_outs],
        [*decision.page_ins],
    )


WHATS = ("open", "request", "request", "finish", "report", "busy", "close", "change", "time")


class Pair:
    """A host, and a scheduler for each of its devices that gets the same calls by itself."""

    def __init__(self, seed: int, policy: str) -> None:
        self.draw = random.Random(seed)
        self.names = ["cuda:0", "cuda:1", "cuda:2"]
        self.host = Host([(name, 64) for name in self.names], policy, RULES)
        self.alone = {name: Scheduler(64, policy, RULES) for name in self.names}
        self.wakes: dict[str, float | None] = dict.fromkeys(self.names)
        self.on: dict[str, str] = {}
        self.now = 0.0

    def step(self, turn: int) -> None:
        self.now += self.draw.choice([0.0, 0.05, 0.3])
        what = self.draw.choice(WHATS)
        id = f"n{self.draw.randrange(9)}"
        if what == "time":
            self.wake()
        elif what == "open" or id not in self.on:
            name = self.on.setdefault(id, self.draw.choice(self.names))
            self.compare(name, "open", id, self.spec(turn), device=[name])
        else:
            event, *said = self.said(what, turn)
            name = self.on.pop(id) if event == "close" else self.on[id]
            self.compare(name, event, id, *said)
        assert self.host.is_valid() == ""

    def spec(self, turn: int) -> SessionSpec:
        draw = self.draw
        return SessionSpec(
            f"u{draw.randrange(3)}",
            demand=Demand(draw.randrange(20), draw.randrange(40), draw.random() < 0.9),
            busy=draw.random() < 0.5,
            waiting=draw.random() < 0.3,
            turn=turn,
        )

    def said(self, what: str, turn: int) -> tuple[Any, ...]:
        draw = self.draw
        if what == "report":
            return "report", draw.randrange(3), Demand(draw.randrange(20), draw.randrange(40))
        if what == "busy":
            return "set_busy", draw.random() < 0.5
        if what == "change":
            return "change", draw.choice([0.5, 1.0, 2.0]), draw.randrange(2)
        return (what,) if what == "close" else (what, turn - (what == "finish"))

    def compare(self, name: str, event: str, id: str, *said: Any, device: Any = None) -> None:
        where = () if device is None else (device,)
        expected = getattr(self.alone[name], event)(self.now, id, *said)
        assert told(getattr(self.host, event)(self.now, id, *where, *said)) == told(expected)
        self.follow([name])

    def follow(self, names: Sequence[str]) -> None:
        for name in names:
            self.wakes[name] = self.alone[name].next_event(self.now)
        first = min((wake for wake in self.wakes.values() if wake is not None), default=None)
        assert self.host.next_event(self.now) == first

    def wake(self) -> None:
        first = min((wake for wake in self.wakes.values() if wake is not None), default=self.now)
        self.now = max(self.now, first)
        due = [name for name, wake in self.wakes.items() if wake is not None and wake <= self.now]
        made = [told(self.alone[name].assign(self.now)) for name in due]
        merged = told(self.host.assign(self.now))
        assert merged == tuple(
            [*itertools.chain(*(decision[part] for decision in made))] for part in range(4)
        )
        self.follow(due)


@tries(60)
@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
def test_a_device_of_a_host_decides_as_if_it_were_alone(seed: int, policy: str) -> None:
    """This holds whatever happens on the others, as long as no session has several devices."""
    pair = Pair(seed, policy)
    for turn in range(1, 120):
        pair.step(turn)


# --- placement ----------------------------------------------------------------------------------


def test_a_session_goes_to_the_device_with_most_memory_for_it() -> None:
    driver = Driver(3)
    driver.close("cuda:1")
    assert driver.host.place(driver.names, Demand(GIB, GIB)) == ["cuda:1"]
    assert driver.host.place(["cuda:2", "cuda:0"], Demand(GIB, GIB)) == ["cuda:2"]
    assert driver.host.place(driver.names, Demand(GIB, GIB), 2) == ["cuda:0", "cuda:1"]


def test_a_device_with_room_comes_first() -> None:
    host = Host([("small", 4 * GIB), ("large", 16 * GIB)])
    for number in range(7):
        host.open(0.0, f"n{number}", ["large"], SessionSpec("u"))
    assert host.place(["small", "large"], Demand(GIB, GIB)) == ["small"]
    assert host.place(["small", "large"], Demand(6 * GIB, GIB)) == ["large"]


@pytest.mark.parametrize("count", [0, 4])
def test_a_gang_can_have_all_devices_and_no_more(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} devices at once are not to be had of 3"):
        Driver(3).host.place(["cuda:0", "cuda:1", "cuda:2"], Demand(), count)


@pytest.mark.parametrize("devices", [[], ["cuda:0", "cuda:0"], ["cuda:7"]])
def test_a_session_names_devices_that_exist(devices: list[str]) -> None:
    driver = Driver(2)
    with pytest.raises(ValueError, match=r"cuda:7|each of its devices once"):
        driver.host.open(0.0, "gang", devices, SessionSpec("u"))
    assert "gang" not in driver.host


def test_a_session_that_opens_again_keeps_its_device() -> None:
    driver = Driver(3)
    driver.open("gang", driver.names[:2])
    for id, devices in (("gang", ["cuda:0"]), ("cuda:0", ["cuda:1"]), ("cuda:0", driver.names)):
        with pytest.raises(ValueError, match="is open on other devices"):
            driver.host.open(0.0, id, devices, SessionSpec("g"))
        driver.look()


# --- gangs --------------------------------------------------------------------------------------


SHARING: dict[str, tuple[dict[str, tuple[int, dict[str, Any]]], float]] = {
    "by weight": ({"one": (2, {"weight": 2.0}), "other": (2, {})}, 2 / 3),
    "by users first, however many gangs each has": (
        {"one": (2, {"user": "ada"}), **{f"other{n}": (2, {"user": "bob"}) for n in range(3)}},
        1 / 2,
    ),
    "by the weights of groups": (
        {"one": (2, {"group": "lab"}), "other": (2, {"group": "class"})},
        3 / 4,
    ),
    "by seconds on each of its devices": ({"one": (2, {}), "other": (4, {})}, 2 / 3),
}


@pytest.mark.parametrize("how", SHARING)
def test_gangs_share_time(how: str) -> None:
    gangs, part = SHARING[how]
    driver = Driver(max(devices for devices, _ in gangs.values()))
    for device in driver.names:
        driver.take(driver.host.set_shares(0.0, device, {"lab": 3.0}, {}))
    for name, (devices, said) in gangs.items():
        driver.open(name, driver.names[:devices], **said)
    driver.contend([*gangs], 120.0)
    assert driver.seconds["one"] / sum(driver.seconds.values()) == pytest.approx(part, abs=0.05)


def test_no_wait_behind_a_gang_is_known_since_its_own_is_not() -> None:
    driver = Driver(2)
    driver.open("x", ["cuda:0"])
    driver.open("gang", driver.names, priority=1)
    for id in ("x", "cuda:0"):
        driver.request(id)
        for _ in range(20):
            driver.pass_time(0.1)
            driver.host.report(driver.now, id, 1, Demand(GIB, GIB), None)
        if id == "x":
            driver.finish(id)
    driver.request("x")
    assert driver.state("x", "cuda:0").expected_wait is not None
    driver.request("gang")
    gang, x = (driver.state(id, "cuda:0") for id in ("gang", "x"))
    assert (gang.position, x.position) == (1, 2)
    assert (gang.expected_wait, x.expected_wait) == (None, None)


def test_a_gang_of_higher_priority_goes_first_until_it_wants_no_turn() -> None:
    driver = Driver(3)
    driver.open("low", driver.names[:2])
    driver.open("high", driver.names[1:], priority=1)
    driver.request("low")
    driver.request("high")
    assert driver.has == {"low"}
    driver.pass_time(0.3)
    driver.obey()
    assert driver.has == {"high"}
    driver.pass_time(60.0)
    assert driver.asked == set()
    driver.finish("high")
    assert driver.has == {"low"}


def test_a_priority_that_changes_while_a_gang_waits_counts() -> None:
    driver = Driver(2)
    for name in ("runs", "first", "second"):
        driver.open(name, driver.names)
        driver.request(name)
    driver.take(driver.host.change(driver.now, "second", priority=1))
    driver.finish("runs")
    assert driver.has == {"second"}


def test_narrow_gangs_whose_turns_interlock_do_not_backfill_past_a_wide_one_for_ever() -> None:
    """One of the narrow ones has always begun less than a quantum ago."""
    driver = Driver(4)
    driver.open("wide", driver.names, user="w")
    narrow = ["left", "right"]
    driver.open("left", driver.names[:2], user="l")
    driver.open("right", driver.names[2:], user="r")
    for id in (*narrow, "wide"):
        driver.request(id)
    for number in range(400):
        driver.pass_time(0.1)
        driver.finish(narrow[number % 2])
        if "wide" in driver.has:
            return
        driver.request(narrow[number % 2])
    raise AssertionError("the wide gang never had a turn")


def test_narrow_gangs_do_not_stand_idle_for_a_wide_one_that_cannot_begin_yet() -> None:
    driver = Driver(4)
    driver.open("high", driver.names[:2], priority=1)
    driver.open("wide", driver.names, user="w")
    driver.open("narrow", driver.names[2:], user="n")
    for id in ("high", "wide", "narrow"):
        driver.request(id)
    assert driver.has == {"high", "narrow"}


def test_two_gangs_that_each_lack_the_place_of_the_other_do_not_wait_for_ever() -> None:
    """The later one finds room on one device while the earlier one has it on the other."""
    driver = Driver(2)
    first, second = driver.names
    driver.close(second)
    driver.open(first, [first], user="p", demand=Demand(9 * GIB, GIB))
    driver.open("earlier", [first, second], demand=Demand(GIB, 13 * GIB))
    driver.open("later", [first, second], demand=Demand(3 * GIB, GIB))
    for id in (first, "earlier", "later"):
        driver.request(id)
    assert driver.state("later", first).why[-1].code == "other_gangs_first"
    driver.finish(first)
    driver.close(first)
    driver.pass_time(1.0)
    assert driver.has == {"earlier"}
    driver.finish("earlier")
    driver.close("earlier")
    driver.pass_time(1.0)
    assert driver.has == {"later"}


def test_a_gang_that_leaves_room_to_an_earlier_one_does_so_also_after_it_has_opened_again() -> None:
    driver = Driver(2)
    first, second = driver.names
    driver.open(first, [first], demand=Demand(9 * GIB, GIB))
    driver.open("earlier", [first, second], demand=Demand(GIB, 13 * GIB))
    driver.open("later", [first, second], demand=Demand(3 * GIB, GIB))
    for id in (first, "earlier", "later"):
        driver.request(id)
    lanes = [driver.state("later", device).lane for device in driver.names]
    driver.open("later", [first, second], demand=Demand(3 * GIB, GIB))
    driver.request("later")
    assert [driver.state("later", device).lane for device in driver.names] == lanes == [None, None]


def test_a_gang_that_is_lost_frees_all_its_devices_at_once() -> None:
    driver = Driver(2)
    driver.open("both", driver.names)
    driver.request("both")
    for name in driver.names:
        driver.request(name)
    assert driver.has == {"both"}
    driver.close("both")
    assert driver.has == {*driver.names}


def test_a_gang_that_withdraws_before_it_has_all_devices_gives_back_those_it_has() -> None:
    driver = Driver(2)
    driver.request("cuda:1")
    driver.open("both", driver.names)
    driver.request("both")
    driver.request("cuda:0")
    driver.finish("both")
    assert driver.has == {"cuda:0", "cuda:1"}


def test_a_gang_that_one_device_throttles_is_told_which_and_why() -> None:
    driver = Driver(2)
    driver.open("both", driver.names)
    driver.take(driver.host.throttle(driver.now, "cuda:1", {"both": [BY_CLASS]}))
    driver.request("both")
    state = driver.state("both", "cuda:0")
    assert state.state == "waiting"
    assert sentence(state.why, str) == (
        "waits until all of its 2 devices are free: on cuda:1 it is throttled: a class of course"
        " has the device until it ends"
    )
    driver.take(driver.host.throttle(driver.now, "cuda:1", {}))
    assert driver.has == {"both"}


def test_a_gang_that_opens_with_its_turn_keeps_it_and_is_asked_for_it_like_others() -> None:
    driver = Driver(3)
    driver.open("back", driver.names[:2], turn=7, holding=True)
    driver.open("other", driver.names[1:])
    driver.request("other")
    assert driver.has == {"back"}
    driver.pass_time(0.3)
    assert driver.asked == {"back"}
    driver.finish("back")
    assert driver.has == {"other"}


def test_a_demand_that_one_of_its_devices_can_never_hold_is_refused_and_changes_nothing() -> None:
    host = Host([("large", 16 * GIB), ("small", 8 * GIB)])
    with pytest.raises(OverflowError, match=f"{12 * GIB}, 0, {8 * GIB}"):
        host.open(0.0, "gang", ["large", "small"], SessionSpec("u", demand=Demand(12 * GIB)))
    assert "gang" not in host
    assert host.is_valid() == ""
