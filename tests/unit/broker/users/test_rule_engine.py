"""An admin's rules in a broker: a refusal for one user does not affect another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare.broker.access.identity import Identity
from jupyter_gpushare.broker.grants.recovery import HeldTurn, RecoveryJournal
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.format import clock
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Curve, Demand, Squeezing
from jupyter_gpushare.wire.framing import ToBroker, encode
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from ..listener import Speaker

GB = 1 << 30
TUESDAY = datetime(2026, 11, 24, 9, tzinfo=timezone.utc).timestamp()  # at nine
HOUR = 3600.0
LOOK = m.Look()
DEVICES = [Device("host", 64 * GB, "main memory"), Device("cuda:0", 16 * GB, "a GPU")]

GROUPS = """
contact = "help@example.org"
admins = ["ada"]
[groups.physics]
members = ["ann", "bob"]
teachers = ["tim"]
[groups.course]
unix_group = "students"
teachers = ["tina"]
"""


class Client(Speaker):
    """A user at the broker, with a notebook or without."""

    def __init__(self, broker: Broker, user: str, groups: tuple[str, ...] = ()) -> None:
        self.groups, self._broker = frozenset(groups), broker
        super().__init__(broker.service, user)

    def says(self, message: ToBroker, now: float = 0.0) -> Client:
        return super().says(message, self._broker.now)

    def opens(
        self, name: str, persistent: int = 0, ephemeral: int = 0, device: str = "host", **more: Any
    ) -> Client:
        demand = Demand(persistent, ephemeral, measured=True)
        return self.says(m.Open(name, f"{name}.ipynb", device, demand=demand, **more))

    def reports(self, persistent: int, ephemeral: int = 0) -> None:
        self.says(m.Report(1, Demand(persistent, ephemeral, measured=True)))

    @property
    def refusal(self) -> m.Error | None:
        """Return the only message since the last call."""
        errors = self.heard_of(m.Error)
        self.heard = [message for message in self.heard if not isinstance(message, m.Error)]
        assert len(errors) <= 1
        return errors[0] if errors else None

    def refused(self) -> m.Error:
        refusal = self.refusal
        assert refusal is not None
        return refusal

    def sees(self, looks: m.Look | m.Watch = LOOK) -> dict[str, SessionView]:
        snapshot = self.says(looks).last(Snapshot)
        return {view.id: view for device in snapshot.devices for view in device.sessions}


class Broker:
    """A service with these rules, in a file that may change."""

    def __init__(
        self,
        path: Path,
        text: str = GROUPS,
        devices: Sequence[Device] = DEVICES,
        grants_from: float = 0.0,
        journal: RecoveryJournal | None = None,
    ) -> None:
        self.path = path
        path.write_text(text)
        self.unix = TUESDAY
        self.now = 1.0
        self.service = Service(
            load({}, rulebook=str(path)),
            devices,
            started=0.0,
            grants_from=grants_from,
            journal=journal,
            clock=lambda: self.unix,
        )

    def client(self, user: str, *groups: str) -> Client:
        return Client(self, user, groups)

    def writes(self, text: str) -> None:
        """Replace the file, and let the broker look."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        self.passes(1.0)

    def passes(self, seconds: float) -> None:
        """Let this time pass, and let the broker look."""
        self.now += seconds
        self.unix += seconds
        self.service.pass_time(self.now)
        self.service.tick(self.now)

    def snapshot(self) -> Snapshot:
        return self.service.snapshot(self.now)

    def views(self) -> list[SessionView]:
        return [view for device in self.snapshot().devices for view in device.sessions]

    def states(self) -> dict[str, str]:
        return {view.id: view.state for view in self.views()}

    def reasons(self) -> dict[str, str]:
        return {view.id: view.reason for view in self.views()}


@pytest.fixture
def broker(rules: Path) -> Broker:
    return Broker(rules)


# --- roles ----------------------------------------------------------------------------------------

ALL = {"ann", "bob", "tim", "tina", "ada"}


@pytest.mark.parametrize(
    ("message", "allowed"),
    [
        (m.Change("a", weight=2.0), ("ann", "tim", "ada")),
        (m.Change("a", paused=True), ("ann", "ada")),
        (m.Change("a", weight=2.0, paused=True), ("ann", "ada")),
        (m.Change("a", priority=-1), ("ann", "ada")),
        (m.Change("a", priority=1), ("ada",)),
        (m.Preempt("a"), ("ann", "ada")),
        (m.SetPolicy("fifo"), ("ada",)),
        (m.Shutdown(), ("ada",)),
    ],
    ids=str,
)
def test_a_permission_is_for_those_roles_and_no_other(
    broker: Broker, message: ToBroker, allowed: tuple[str, ...]
) -> None:
    broker.client("ann").opens("a").says(m.Request(1))
    for user in sorted(ALL.difference(allowed)):
        refusal = broker.client(user).says(message).refused()
        assert refusal.code == "not_permitted"
        assert refusal.message.startswith("only ")
    assert (broker.snapshot().policy, broker.service.is_stopping) == ("fair", False)
    (view,) = broker.snapshot().devices[0].sessions
    assert (view.weight, view.priority, view.state) == (1.0, 0, "running")
    for user in allowed:
        client = broker.client(user).says(message)
        assert client.refusal is None
        assert client.heard_of(m.Done)


def test_a_priority_above_0_is_refused_at_registration_to_users_that_may_not_set_it_later(
    broker: Broker,
) -> None:
    refusal = broker.client("ann").opens("a", priority=1).refused()
    assert refusal.message == "only an admin may set a priority above 0"
    assert broker.client("ada").opens("b", priority=1).heard_of(m.Opened)


def test_an_admin_of_the_file_is_told_that_it_is_one(broker: Broker) -> None:
    for user in ALL:
        assert broker.client(user).last(m.Welcome).is_administrator == (user == "ada")


def test_a_watcher_is_told_of_other_permissions_before_the_snapshot_with_them(
    broker: Broker,
) -> None:
    ann, bob = (broker.client(user).says(m.Watch(0.0)) for user in ("ann", "bob"))
    first = ann.last(m.Welcome)
    for rules, is_administrator in ((GROUPS.replace("ada", "ann"), True), (GROUPS, False)):
        broker.writes(rules)
        *_, welcome, shown = ann.heard
        assert welcome == replace(first, is_administrator=is_administrator)
        assert isinstance(shown, Snapshot)
    ann.is_owner = True  # as the hub says by now
    broker.service.follow_identity(ann, Identity("ann"))
    broker.passes(1.0)
    assert ann.last(m.Welcome).is_administrator
    assert len(ann.heard_of(m.Welcome)) == 4
    assert len(bob.heard_of(m.Welcome)) == 1


def test_all_users_see_the_members_and_teachers_of_each_group(broker: Broker) -> None:
    broker.client("ann").opens("a")
    broker.client("eve", "students").opens("e")
    broker.client("pat").opens("p")
    groups = {id: view.group for id, view in broker.client("pat").sees().items()}
    assert groups == {"a": "physics", "e": "course", "p": ""}
    teachers = {group.name: group.teachers for group in broker.snapshot().groups}
    assert teachers == {"physics": ["tim"], "course": ["tina"]}


# --- names ----------------------------------------------------------------------------------------

HIDDEN = f'notebook_names = "teachers"\n{GROUPS}'


@pytest.mark.parametrize("looks", [m.Watch(), m.Look()])
@pytest.mark.parametrize(
    ("user", "hidden"),
    [("ann", {"bob", "eve"}), ("tim", {"eve"}), ("tina", {"ann", "bob"}), ("ada", set())],
)
def test_names_are_for_owners_teachers_of_the_group_and_admins(
    rules: Path, looks: m.Watch | m.Look, user: str, hidden: set[str]
) -> None:
    broker = Broker(rules, HIDDEN)
    for owner, groups in (("ann", ()), ("bob", ()), ("eve", ("students",))):
        broker.client(owner, *groups).opens(f"of-{owner}")
    assert {id: view.name for id, view in broker.client(user).sees(looks).items()} == {
        f"of-{owner}": f"a notebook of {owner}" if owner in hidden else f"of-{owner}.ipynb"
        for owner in ("ann", "bob", "eve")
    }


@pytest.mark.parametrize(
    ("user", "name"), [("ann", "first.ipynb"), ("bob", "a notebook of ann"), ("ada", "first.ipynb")]
)
def test_a_waiting_session_reads_no_name_that_it_may_not_see(
    rules: Path, user: str, name: str
) -> None:
    broker = Broker(rules, HIDDEN)
    broker.client("ann").opens("first", GB, GB).says(m.Request(1))
    waiting = broker.client(user).opens("second", GB, GB).says(m.Request(1))
    broker.passes(8.0)
    (wait,) = waiting.heard_of(m.Wait)
    assert (wait.holder, wait.reason) == (name, f"waits for {name}")
    assert waiting.sees()["second"].reason == f"waits for {name}"


ANNS = {b"runs.ipynb", b"rests.ipynb"}


class Tapped(Client):
    """A client that keeps all bytes it receives."""

    sent = b""

    def send(self, *messages: m.Message) -> None:
        super().send(*messages)
        self.sent += b"".join(map(encode, messages))

    def send_frame(self, frame: bytes) -> None:
        super().send_frame(frame)
        self.sent += frame


@pytest.mark.parametrize("looks", [m.Watch(), m.Look()])
@pytest.mark.parametrize(("user", "seen"), [("ann", ANNS), ("bob", set()), ("ada", ANNS)])
def test_nothing_that_is_sent_has_a_name_that_its_reader_may_not_see(
    rules: Path, looks: m.Watch | m.Look, user: str, seen: set[bytes]
) -> None:
    broker = Broker(rules, HIDDEN)
    broker.client("ann").opens("runs", GB, GB).says(m.Request(1))
    broker.client("ann").opens("rests", GB, GB, busy=False).says(m.Rests(GB))
    tapped = Tapped(broker, user).opens("waits", GB, GB).says(m.Request(1))
    broker.passes(8.0)
    tapped.says(looks).says(m.Preempt("runs"))
    assert tapped.heard_of(m.Wait)
    assert tapped.last(Snapshot).devices[0].resting
    assert {name for name in ANNS if name in tapped.sent} == seen


FULL = "40 MiB do not fit into /home/ann/pages"


@pytest.mark.parametrize("looks", [m.Watch(), m.Look()])
@pytest.mark.parametrize(
    ("user", "sees"), [("ann", True), ("bob", False), ("tim", False), ("ada", True)]
)
def test_why_a_notebook_could_not_be_paged_out_is_for_its_owner_and_admins(
    broker: Broker, looks: m.Watch | m.Look, user: str, sees: bool
) -> None:
    """The cause of a refusal may name directories of the user. It is part of the reason of another
    notebook of this user, which all users see."""
    ann = broker.client("ann").opens("stays", 40 * GB, GB, busy=False)
    broker.client("ann").opens("waits", 40 * GB, GB).says(m.Request(1))
    ann.says(m.StaysIn(FULL))
    tapped = Tapped(broker, user)
    reason = tapped.sees(looks)["waits"].reason
    assert reason.endswith(f"; stays.ipynb could not be paged out{f': {FULL}' if sees else ''}")
    assert (FULL.encode() in tapped.sent) == sees


def test_a_name_is_shown_as_it_is_whatever_is_in_it(rules: Path) -> None:
    broker = Broker(rules, HIDDEN)
    ann = broker.client("ann")
    ann.says(m.Open(id="a", name='"\\u0002b\\u0003" \\ \N{SNOWMAN}\x02b\x03', device="host"))
    broker.client("bob").opens("b")
    assert ann.sees(m.Watch())["a"].name == '"\\u0002b\\u0003" \\ \N{SNOWMAN}?b?'


# --- quotas ---------------------------------------------------------------------------------------

QUOTAS = f"""{GROUPS}
[quotas]
persistent = "4 GiB"
lane = "2 GiB"
sessions = 2
[quotas.users.bob]
sessions = 1
[quotas.groups.physics]
persistent = "6 GiB"
"""


@pytest.fixture
def strict(rules: Path) -> Broker:
    return Broker(rules, QUOTAS)


def test_one_notebook_too_many_is_refused_with_rule_number_and_administrator(
    strict: Broker,
) -> None:
    bob = strict.client("bob").opens("b1").opens("b1")  # which is one
    assert (bob.refusal, len(bob.heard_of(m.Opened))) == (None, 2)
    refusal = strict.client("bob").opens("b2").refused()
    assert (refusal.code, refusal.message) == (
        "quota",
        "bob would have 2 notebooks, where the rule sessions in [quotas.users.bob] allows 1;"
        " ask help@example.org",
    )
    assert strict.client("ann").opens("a1").heard_of(m.Opened)
    assert strict.client("ann").opens("a2").heard_of(m.Opened)
    assert strict.client("ann").opens("a3").refusal is not None


def test_a_session_that_comes_back_with_a_turn_after_a_crash_goes_on_with_it(rules: Path) -> None:
    journal = RecoveryJournal()
    journal.missing = {HeldTurn("b2", 3, "")}
    broker = Broker(rules, QUOTAS, grants_from=2.0, journal=journal)
    assert broker.client("bob").opens("b1").heard_of(m.Opened)
    assert broker.client("bob").opens("b2", turn=3, holding=True).heard_of(m.Opened)
    assert broker.states()["b2"] == "running"


@pytest.mark.parametrize(
    ("persistent", "ephemeral", "sentence"),
    [
        (5, 0, "5.0 GiB of persistent memory, where the rule persistent in [quotas] allows 4.0"),
        (0, 3, "3.0 GiB inside one iteration, where the rule lane in [quotas] allows 2.0 GiB"),
    ],
)
def test_too_much_memory_is_refused_at_registration_and_at_the_boundary(
    strict: Broker, persistent: int, ephemeral: int, sentence: str
) -> None:
    first = strict.client("ann").opens("a1", persistent * GB, ephemeral * GB)
    grown = strict.client("ann").opens("a2").says(m.Request(1))
    grown.reports(persistent * GB, ephemeral * GB)
    for client in (first, grown):
        refusal = client.refused()
        assert refusal.code == "quota"
        assert refusal.message.startswith(f"ann would have {sentence}")
    other = strict.client("pat").opens("p", 4 * GB, 2 * GB).says(m.Request(1))
    other.reports(4 * GB, 2 * GB)
    assert other.refusal is None


def test_a_users_notebooks_count_together_and_only_the_growing_one_is_refused(
    strict: Broker,
) -> None:
    first, second = (strict.client("pat").opens(name, 2 * GB) for name in "ab")
    second.reports(3 * GB)
    assert second.refusal is not None
    first.reports(2 * GB)
    assert first.refusal is None
    second.says(m.Request(1))
    second.reports(2 * GB)
    assert second.refusal is None


def test_a_groups_users_count_together(strict: Broker) -> None:
    strict.client("ann").opens("a", 4 * GB)
    refusal = strict.client("bob").opens("b", 3 * GB).refused()
    assert refusal.message.startswith(
        "physics would have 7.0 GiB of persistent memory, where the rule"
        " persistent in [quotas.groups.physics] allows 6.0 GiB"
    )
    assert strict.client("pat").opens("p", 3 * GB).heard_of(m.Opened)


def test_a_session_over_its_quota_is_told_once_and_gets_no_larger_lane(strict: Broker) -> None:
    greedy = strict.client("ann").opens("a", GB, GB)
    for _ in range(3):
        greedy.reports(GB, 9 * GB)
    assert greedy.refusal is not None
    view = strict.client("pat").sees()["a"]
    assert (view.ephemeral_bytes, view.measured) == (GB, False)
    greedy.reports(GB, GB)
    assert strict.client("pat").sees()["a"].measured


@pytest.fixture
def grown(strict: Broker) -> Client:
    """A session that fitted, and has come to need more than its user's quota in its turn."""
    grown = strict.client("ann").opens("a", GB, GB).says(m.Request(1))
    grown.reports(GB, GB)
    for _ in range(3):
        grown.reports(5 * GB, GB)
    return grown


def test_a_session_that_grows_beyond_its_quota_yields_waits_and_is_told_once(
    strict: Broker, grown: Client
) -> None:
    assert grown.refusal is None
    (told,) = grown.heard_of(m.Notice)
    assert told.sentence.startswith(f"this notebook waits, since {ABOVE}. It goes on as soon as")
    strict.passes(0.5)
    assert grown.heard_of(m.Yield) == [m.Yield(1)]
    grown.says(m.Finish(1)).says(m.Request(2))
    strict.client("pat").opens("p", GB, GB).says(m.Request(1))
    assert strict.states() == {"a": "throttled", "p": "running"}
    assert strict.reasons()["a"] == f"throttled: {ABOVE}"


ABOVE = (
    "ann would have 5.0 GiB of persistent memory, where the rule persistent in [quotas] allows"
    " 4.0 GiB; ask help@example.org"
)


def test_a_session_above_its_quota_has_one_turn_after_each_wait_that_it_gives_up(
    strict: Broker, grown: Client
) -> None:
    """The user may have freed memory, and only an iteration can show that."""
    strict.passes(0.5)
    grown.says(m.Finish(1))
    for turn, persistent, state in ((2, 5, "throttled"), (4, 3, "running")):
        grown.says(m.Request(turn))
        strict.passes(0.5)
        assert strict.states()["a"] == "throttled"
        grown.says(m.Finish(turn)).says(m.Request(turn + 1))
        strict.passes(0.5)
        assert strict.states()["a"] == "running"
        grown.reports(persistent * GB, GB)
        grown.says(m.Finish(turn + 1)).says(m.Request(turn + 2))
        strict.passes(0.5)
        assert strict.states()["a"] == state
    assert len(grown.heard_of(m.Notice)) == 2


def test_a_session_above_its_quota_goes_on_once_another_of_its_user_has_left(
    strict: Broker,
) -> None:
    first, second = (strict.client("pat").opens(name, 2 * GB) for name in "ab")
    second.reports(2 * GB)
    second.reports(3 * GB)
    second.says(m.Request(1))
    strict.passes(0.5)
    assert strict.states() == {"a": "idle", "b": "throttled"}
    first.says(m.Close())
    strict.passes(0.5)
    assert strict.states() == {"b": "running"}


def test_a_demand_that_a_device_cannot_hold_is_refused_once_and_counts_for_no_quota(
    rules: Path,
) -> None:
    broker = Broker(rules, "[quotas]\npersistent = '100 GiB'")
    first, second = (broker.client("ann").opens(name) for name in "ab")
    for _ in range(2):
        first.reports(90 * GB)
    assert first.refused().code == "does_not_fit"
    second.reports(20 * GB)
    assert second.refusal is None


# --- bounds on waiting notebooks and on seconds of a day ------------------------------------------

WAITING = f"{GROUPS}\n[quotas]\nwaiting = 1"


def test_notebooks_beyond_the_bound_on_waiting_are_throttled_and_wait_in_the_order_of_requests(
    rules: Path,
) -> None:
    broker = Broker(rules, WAITING)
    notebooks = {name: broker.client("ann").opens(name, GB, GB) for name in "abc"}
    notebooks["p"] = broker.client("pat").opens("p", GB, GB)
    for notebook in notebooks.values():
        notebook.says(m.Request(1))
    broker.passes(1.0)
    assert broker.states() == {"a": "running", "b": "waiting", "c": "throttled", "p": "waiting"}
    assert broker.reasons()["c"] == (
        "throttled: ann may have 1 waiting at a time by the rule waiting in [quotas];"
        " ask help@example.org"
    )
    for name, turn in (("a", 1), ("p", 1)):  # the order in the queue: ann's had more than pat's
        notebooks[name].says(m.Finish(turn))
    notebooks["a"].says(m.Request(2))
    broker.passes(1.0)
    assert broker.states() == {"a": "throttled", "b": "running", "c": "waiting", "p": "idle"}


USED = f"""
time_zone = "UTC"
{GROUPS}
[quotas]
device_seconds_per_day = "1 h"
[quotas.groups.physics]
device_seconds_per_day = 5400
"""


def test_a_user_without_seconds_left_for_the_day_yields_and_is_throttled_until_midnight(
    rules: Path,
) -> None:
    broker = Broker(rules, USED)
    pat, ann = (broker.client(user).opens(user[0], GB, GB) for user in ("pat", "ann"))
    pat.says(m.Request(1))
    broker.passes(HOUR - 1)
    assert not pat.heard_of(m.Yield)
    broker.passes(2.0)
    assert pat.heard_of(m.Yield) == [m.Yield(1)]
    ann.says(m.Request(1))
    pat.says(m.Finish(1)).says(m.Request(2))
    assert broker.states() == {"p": "throttled", "a": "running"}
    assert broker.reasons()["p"] == (
        f"throttled until {clock(TUESDAY + 15 * HOUR)}: pat has had 1 h 0 min of the device today,"
        " the most by the rule device_seconds_per_day in [quotas]; ask help@example.org"
    )
    ann.says(m.Finish(1))
    broker.passes(13 * HOUR)
    assert broker.states() == {"p": "throttled", "a": "idle"}
    broker.passes(HOUR)
    broker.passes(HOUR)
    assert broker.states() == {"p": "running", "a": "idle"}


def test_a_groups_seconds_of_a_day_are_those_of_all_in_it(rules: Path) -> None:
    broker = Broker(rules, USED)
    ann, bob, pat = (broker.client(user).opens(user[0], GB, GB) for user in ("ann", "bob", "pat"))
    for client in (ann, bob):
        client.says(m.Request(1))
        broker.passes(0.75 * HOUR)
        client.says(m.Finish(1))
    broker.passes(1.0)
    for client in (ann, bob, pat):
        client.says(m.Request(2))
    broker.passes(1.0)
    assert broker.states() == {"a": "throttled", "b": "throttled", "p": "running"}
    assert "device_seconds_per_day in [quotas.groups.physics]" in broker.reasons()["a"]


def seconds_of(broker: Broker, seconds: float, **groups_of: tuple[str, ...]) -> dict[str, float]:
    """Return the device seconds of each of these users, who always want more, in iterations of 50
    ms."""
    clients = [
        broker.client(user, *groups).opens(user, GB, GB).says(m.Request(1))
        for user, groups in groups_of.items()
    ]
    for _ in range(int(seconds / 0.05)):
        broker.passes(0.05)
        for client in clients:
            for asked in client.heard_of(m.Yield):
                client.heard.clear()
                client.says(m.Finish(asked.turn)).says(m.Request(asked.turn + 1))
    return {view.id: view.device_seconds for view in broker.views()}


def test_time_is_shared_over_groups_then_users_by_the_weights_of_the_file(rules: Path) -> None:
    broker = Broker(rules, f"{GROUPS}\n[users.ann]\nweight = 3")
    broker.writes(
        f"{GROUPS.replace('members', f'weight = 2{chr(10)}members')}[users.ann]\nweight = 3"
    )
    seconds = seconds_of(broker, 120, ann=(), bob=(), eve=("students",))
    assert seconds == pytest.approx({"ann": 60.0, "bob": 20.0, "eve": 40.0}, abs=3.0)


# --- reservations ---------------------------------------------------------------------------------

RESERVED = f"""
time_zone = "UTC"
{GROUPS}
[[reservations]]
group = "course"
device = "host"
days = ["tuesday"]
from = "10:00"
to = "12:00"
"""


def test_a_reservation_is_seen_a_day_before_begins_by_itself_and_ends(rules: Path) -> None:
    broker = Broker(rules, RESERVED)
    broker.unix = TUESDAY - 23.5 * HOUR
    pat, eve = broker.client("pat").opens("p", GB, GB), broker.client("eve", "students")
    eve.opens("e", GB, GB)
    assert broker.snapshot().reservations == []
    broker.passes(HOUR)
    (seen,) = broker.snapshot().reservations
    assert (seen.group, seen.is_on) == ("course", False)
    assert (seen.begins, seen.ends) == (TUESDAY + HOUR, TUESDAY + 3 * HOUR)
    broker.unix = TUESDAY + HOUR - 1
    pat.says(m.Request(1))
    broker.passes(0.5)
    assert not pat.heard_of(m.Yield)
    broker.passes(1.0)
    assert pat.heard_of(m.Yield) == [m.Yield(1)]
    eve.says(m.Request(1))
    pat.says(m.Finish(1)).says(m.Request(2))
    assert broker.states() == {"p": "throttled", "e": "running"}
    until = clock(TUESDAY + 3 * HOUR)
    assert broker.reasons()["p"] == f"throttled: course has reserved the device until {until}"
    assert broker.snapshot().reservations[0].is_on
    eve.says(m.Finish(1))
    broker.unix = TUESDAY + 3 * HOUR
    broker.passes(1.0)
    assert broker.states() == {"p": "running", "e": "idle"}


def test_a_session_that_comes_during_a_reservation_is_throttled_from_its_first_request_on(
    rules: Path,
) -> None:
    broker = Broker(rules, RESERVED)
    broker.unix = TUESDAY + HOUR
    for user, device, state in (
        ("pat", "host", "throttled"),
        ("bob", "cuda:0", "running"),
        ("tina", "host", "running"),  # a teacher is part of the class
    ):
        broker.client(user).opens(user, GB, GB, device).says(m.Request(1))
        assert broker.states()[user] == state


def test_a_reserved_share_is_available_while_a_member_of_the_group_wants_it(rules: Path) -> None:
    broker = Broker(rules, f"{RESERVED}share = 0.75")
    broker.unix = TUESDAY + HOUR
    seconds = seconds_of(broker, 120, ann=(), eve=("students",), pat=())
    assert seconds == pytest.approx({"ann": 15.0, "eve": 90.0, "pat": 15.0}, abs=3.0)


# --- classes --------------------------------------------------------------------------------------


def test_a_class_is_begun_and_ended_by_a_teacher_of_its_group_or_an_admin(broker: Broker) -> None:
    for user in ("ann", "eve", "tim", "pat"):
        client = broker.client(user, *(("students",) if user == "eve" else ()))
        for on in (True, False):
            assert client.says(m.ClassMode("course", on)).refused().message == (
                "only a teacher of the group or an admin may begin or end a class"
            )
    assert broker.snapshot().classes == []
    for begins, ends in (("tina", "ada"), ("ada", "tina")):
        broker.client(begins).says(m.ClassMode("course", True))
        assert {one.device for one in broker.snapshot().classes} == {"host", "cuda:0"}
        broker.client(ends).says(m.ClassMode("course", False))
        assert broker.snapshot().classes == []


def test_a_class_has_the_device_and_the_policy_before_it_comes_back(broker: Broker) -> None:
    broker.client("ada").says(m.SetPolicy("LAS"))  # as an admin may write it
    pat, eve = broker.client("pat").opens("p", GB, GB), broker.client("eve", "students")
    eve.opens("e", GB, GB)
    pat.says(m.Request(1))
    broker.client("pat").opens("other", GB, GB, "cuda:0").says(m.Request(1))
    tina = broker.client("tina")
    tina.says(m.ClassMode("course", True, "host", seconds=HOUR))
    assert tina.heard_of(m.Done)
    assert pat.heard_of(m.Yield) == [m.Yield(1)]
    eve.says(m.Request(1))
    pat.says(m.Finish(1)).says(m.Request(2))
    snapshot = broker.snapshot()
    assert snapshot.policy == "classroom"
    (one,) = snapshot.classes
    assert (one.group, one.device, one.ends) == ("course", "host", TUESDAY + HOUR)
    assert broker.states() == {"p": "throttled", "e": "running", "other": "running"}
    until = clock(TUESDAY + HOUR)
    assert broker.reasons()["p"] == f"throttled: a class of course has the device until {until}"
    eve.says(m.Finish(1))
    broker.passes(HOUR - 1)
    assert broker.snapshot().policy == "classroom"
    broker.passes(1.0)
    assert (broker.snapshot().policy, broker.snapshot().classes) == ("las", [])
    assert broker.states() == {"p": "running", "e": "idle", "other": "running"}


CLASS = f"{GROUPS}\n[groups.lab]\nmembers = ['eve', 'kim', 'tina']\nteachers = ['tina']"


def test_students_of_a_class_have_equal_memory(rules: Path) -> None:
    """With two students, besides the teacher tina, each has half of 16 GiB for all notebooks
    together."""
    broker = Broker(rules, CLASS)
    eve, more = (broker.client("eve").opens(name, GB, GB, "cuda:0") for name in "ef")
    kim = broker.client("kim").opens("k", GB, GB, "cuda:0")
    tina = broker.client("tina").opens("t", GB, GB, "cuda:0")
    eve.reports(6 * GB, GB)
    assert eve.refusal is None
    tina.says(m.ClassMode("lab", True))
    more.reports(2 * GB, GB)
    refusal = more.refused()
    assert (refusal.code, refusal.message) == (
        "quota",
        "eve would have 9.0 GiB of the device; each of the 2 of the class of lab has 8.0 GiB"
        " while it lasts; ask help@example.org",
    )
    kim.reports(7 * GB, GB)
    assert kim.refusal is None
    tina.says(m.ClassMode("lab", False))
    more.says(m.Request(1))
    more.reports(2 * GB, 0)
    assert more.refusal is None


LASTS = "a class lasts more than 0 and at most 86400 seconds, not "


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (m.ClassMode("nobody", True), "there is no group 'nobody'; there is physics, course, lab"),
        (m.ClassMode("course", False), "no class of course is on"),
        (m.ClassMode("course", True, "host"), "a class of lab has host already"),
        (m.ClassMode("lab", True, "cuda:7"), "there is no device 'cuda:7' here"),
        (m.ClassMode("lab", True, seconds=0.0), LASTS),
        (m.ClassMode("lab", True, seconds=86401.0), LASTS),
        (m.ClassMode("lab", True, seconds=1e308), LASTS),
        (m.SetPolicy("fifo", device="host"), "a class of lab has host: end it first"),
    ],
)
def test_an_impossible_class_is_refused_and_the_present_class_continues(
    rules: Path, message: ToBroker, sentence: str
) -> None:
    broker = Broker(rules, CLASS)
    ada = broker.client("ada").says(m.ClassMode("lab", True, "host"))
    assert ada.says(message).refused().message.startswith(sentence)
    assert [(one.group, one.device) for one in broker.snapshot().classes] == [("lab", "host")]
    assert broker.snapshot().policy == "classroom"


def test_a_reservation_of_another_group_goes_before_a_class(rules: Path) -> None:
    broker = Broker(rules, RESERVED)
    tim = broker.client("tim").says(m.ClassMode("physics", True))
    assert len(broker.snapshot().classes) == 2
    broker.passes(HOUR)
    assert [one.device for one in broker.snapshot().classes] == ["cuda:0"]
    refusal = tim.says(m.ClassMode("physics", True)).refused()
    assert refusal.message == "course has reserved host now"
    broker.client("tina").says(m.ClassMode("course", True, "host"))
    assert [one.device for one in broker.snapshot().classes] == ["cuda:0", "host"]


def test_a_class_ends_with_its_group(rules: Path) -> None:
    broker = Broker(rules, CLASS)
    broker.client("tina").says(m.ClassMode("lab", True))
    broker.writes(GROUPS)
    assert (broker.snapshot().policy, broker.snapshot().classes) == ("fair", [])


def test_a_class_and_reservations_end_with_the_rules_though_no_session_was_ever_open(
    rules: Path,
) -> None:
    broker = Broker(rules, RESERVED)
    broker.client("tim").says(m.ClassMode("physics", True, "host"))
    assert (len(broker.snapshot().classes), len(broker.snapshot().reservations)) == (1, 1)
    broker.writes("# none any more")
    assert (broker.snapshot().classes, broker.snapshot().reservations) == ([], [])
    assert broker.snapshot().policy == "fair"


def test_a_wrong_file_is_shown_and_the_old_rules_stay_in_force(strict: Broker) -> None:
    subscriber = strict.client("pat")
    subscriber.says(m.Watch(0.0))
    strict.writes("sessions = 2")
    assert subscriber.last(Snapshot).rulebook_error == (
        f"the rules in {strict.path} are wrong: sessions is not known; contact, admins,"
        " notebook_names, time_zone, groups, users, quotas, reservations, idle, overdue,"
        " accounting are; the rules before it stay in force"
    )
    strict.client("bob").opens("b1")
    assert strict.client("bob").opens("b2").refusal is not None
    strict.writes(GROUPS)
    assert strict.snapshot().rulebook_error == ""


# --- ways around the rules ------------------------------------------------------------------------


def test_a_session_that_opens_while_it_waits_is_throttled_before_it_has_a_turn(
    broker: Broker,
) -> None:
    broker.client("tim").says(m.ClassMode("physics", on=True))
    outsider = broker.client("tom").opens("t", waiting=True, turn=1)
    assert outsider.heard_of(m.Opened)
    assert not outsider.heard_of(m.Grant)
    assert broker.states() == {"t": "throttled"}
    assert broker.client("ann").opens("a", waiting=True, turn=1).heard_of(m.Grant)


@pytest.mark.parametrize("more", [{}, {"holding": True, "turn": 1}])
def test_losing_the_connection_is_no_way_around_a_class(
    broker: Broker, more: dict[str, Any]
) -> None:
    """This holds even if the session is back before the rules are applied again."""
    broker.client("tim").says(m.ClassMode("physics", on=True))
    for _ in range(2):
        outsider = broker.client("tom").opens("t", **more)
        outsider.says(m.Request(2))
        assert broker.states() == {"t": "throttled"}
        broker.service.lost(outsider, broker.now)


@pytest.mark.parametrize("more", [{}, {"holding": True, "turn": 1}])
def test_a_session_that_opens_again_gets_no_more_memory_than_before(
    strict: Broker, more: dict[str, Any]
) -> None:
    ann = strict.client("ann").opens("a", persistent=GB)
    assert ann.opens("a", persistent=5 * GB, **more).refusal is not None
    assert strict.snapshot().devices[0].persistent_bytes == GB
    assert ann.opens("a", persistent=2 * GB, **more).refusal is None


@pytest.mark.parametrize(
    ("keeps", "allowed"), [((5 * GB, 0), False), ((GB, 3 * GB), False), ((3 * GB, GB), True)]
)
def test_memory_that_outlives_its_iteration_obeys_the_quotas(
    strict: Broker, keeps: tuple[int, int], allowed: bool
) -> None:
    ann = strict.client("ann").opens("a", persistent=GB).says(m.Request(1))
    ann.says(m.Keep(Demand(*keeps, measured=True)))
    refusal = ann.refusal
    assert (refusal is None) == allowed
    assert strict.snapshot().devices[0].persistent_bytes == (keeps[0] if allowed else GB)
    assert strict.states() == {"a": "running"}
    more = strict.client("ann").opens("more", persistent=2 * GB)
    assert (more.refusal is None) != allowed, "what is kept counts beside other notebooks"


def test_memory_that_outlives_its_iteration_obeys_the_equal_parts_of_a_class(
    broker: Broker,
) -> None:
    broker.client("tim").says(m.ClassMode("physics", on=True))
    ann = broker.client("ann").opens("a", persistent=GB).says(m.Request(1))
    ann.says(m.Keep(Demand(33 * GB, 0, measured=True)))
    assert "each of the 2 of the class of physics has 32.0 GiB" in ann.refused().message


def test_the_policy_of_a_class_is_not_changed_by_another_name_of_its_device(rules: Path) -> None:
    broker = Broker(rules, devices=[*DEVICES, Device("cuda:1", GB, "a GPU", uuid="GPU-1")])
    broker.client("tim").says(m.ClassMode("physics", on=True, device="cuda:1"))
    ada = broker.client("ada")
    for device in ("GPU-1", None):
        refusal = ada.says(m.SetPolicy("fifo", device=device)).refused()
        assert "end it first" in refusal.message
    assert broker.snapshot().policy == "fair"  # of the first device


@pytest.mark.parametrize("count", [-1, 1 << 41, 1 << 63, 1 << 70])
def test_impossible_counts_are_refused_in_a_sentence(broker: Broker, count: int) -> None:
    ann = broker.client("ann").opens("a")
    for message in (m.Report(count, Demand()), m.Report(1, Demand(), count)):
        assert ann.says(message).refused().message == "iterations are counted from 0 upwards"
    refusal = ann.says(m.Report(1, Demand(1 << 63))).refused()
    assert refusal.message == "a demand is in bytes, from 0 upwards"
    assert broker.snapshot().devices[0].sessions[0].iterations == 0


CURVE = Curve(0.5, 1 << 20, (10, 100, 30))
PARTS = "a part of a curve is 0 to 100 percent of its peak"
TAKES = "the iteration of a curve takes some seconds and some bytes"
SQUEEZED = Squeezing(10, 39, 38, 120, 1.3, 210)
BYTES = "what is squeezed is in bytes, from 0 upwards"
SLOWER = "a slowdown is 1, which is none, or more"


def test_a_curve_is_shown_until_another_one_is_told(broker: Broker) -> None:
    ann = broker.client("ann").opens("a")
    assert broker.views()[0].curve is None
    ann.says(m.Report(1, Demand(), curve=CURVE)).says(m.Report(1, Demand()))
    assert broker.views()[0].curve == CURVE
    ann.says(m.Report(1, Demand(), curve=(later := replace(CURVE, seconds=0.7))))
    assert broker.views()[0].curve == later


def test_how_far_a_notebook_is_squeezed_is_shown_as_it_is_told(broker: Broker) -> None:
    ann = broker.client("ann").opens("a")
    assert broker.views()[0].squeezing is None
    for told in (SQUEEZED, Squeezing(asked_bytes=10), None):
        ann.says(m.Report(1, Demand(), squeezing=told))
        assert broker.views()[0].squeezing == told


@pytest.mark.parametrize(
    ("right", "changes", "why"),
    [
        (CURVE, {"percent": ()}, "a curve has 1 to 64 parts, not 0"),
        (CURVE, {"percent": (1,) * 65}, "a curve has 1 to 64 parts, not 65"),
        *((CURVE, {"percent": parts}, PARTS) for parts in ((0, 101), (-1, 100))),
        *((CURVE, {"seconds": seconds}, TAKES) for seconds in (0.0, math.nan, math.inf)),
        *((CURVE, {"peak_bytes": count}, TAKES) for count in (0, 1 << 62)),
        *(
            (SQUEEZED, {name: count}, BYTES)
            for name in ("asked_bytes", "reached_bytes", "floor_bytes", "whole_bytes")
            for count in (-1, 1 << 62)
        ),
        (SQUEEZED, {"written_bytes": -1}, BYTES),
        *((SQUEEZED, {"slowdown": slowdown}, SLOWER) for slowdown in (0.9, math.nan, math.inf)),
    ],
)
def test_an_impossible_curve_or_figure_of_squeezing_is_refused_in_a_sentence(
    broker: Broker, right: Any, changes: dict[str, Any], why: str
) -> None:
    field = "curve" if right is CURVE else "squeezing"
    ann = broker.client("ann").opens("a")
    ann.says(m.Report(1, Demand(), **{field: right}))
    wrong = m.Report(1, Demand(), **{field: replace(right, **changes)})
    assert ann.says(wrong).refused().message == why
    assert getattr(broker.views()[0], field) == right


def test_only_notebooks_whose_group_or_domain_changes_have_to_open_again(broker: Broker) -> None:
    ann, bob, cid = (broker.client(user).opens(user) for user in ("ann", "bob", "cid"))
    broker.writes(GROUPS.replace('members = ["ann", "bob"]', 'members = ["bob"]'))
    assert (ann.is_open, bob.is_open, cid.is_open) == (False, True, True)
    broker.writes(GROUPS.replace('members = ["ann", "bob"]', 'members = ["bob"]\ntrusted = true'))
    assert not bob.is_open
    assert cid.is_open
