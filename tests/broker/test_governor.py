"""An admin's rules in a broker: what one is refused, somebody else gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pytest

from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.protocol import (
    HEADER_BYTES,
    MAX_SNAPSHOT_BYTES,
    PROTOCOL,
    Change,
    Close,
    Demand,
    Done,
    Error,
    Frames,
    Grant,
    Hello,
    Look,
    Message,
    Open,
    Opened,
    Recall,
    Report,
    Request,
    SessionView,
    SetPolicy,
    Shutdown,
    Snapshot,
    ToBroker,
    Wait,
    Watch,
    Welcome,
    decode_from_broker,
)
from jupyter_gpushare.settings import load

GB = 1 << 30
STRANGER = 54321  # a user id that is neither the superuser's nor the broker's
DEVICES = [Device("host", 64 * GB, "main memory"), Device("cuda:0", 16 * GB, "a GPU")]
Kind = TypeVar("Kind", bound=Message)

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


class Client(Peer):
    """Somebody at the broker, with a notebook or without; it keeps what it is sent."""

    def __init__(self, service: Service, user: str, groups: tuple[str, ...] = ()) -> None:
        self.uid, self.pid, self.user = STRANGER, 1, user
        self.groups = frozenset(groups)
        self.heard: list[Message] = []
        self._frames = Frames(MAX_SNAPSHOT_BYTES)
        self._service = service
        self.says(Hello(PROTOCOL))

    def says(self, message: ToBroker, now: float = 1.0) -> None:
        self._service.handle(self, message, now)

    def opens(
        self, name: str, persistent: int = 0, ephemeral: int = 0, device: str = "host", **more: Any
    ) -> Client:
        demand = Demand(persistent, ephemeral, measured=True)
        self.says(Open(id=name, name=f"{name}.ipynb", device=device, demand=demand, **more))
        return self

    def reports(self, persistent: int, ephemeral: int = 0) -> None:
        self.says(Report(1, Demand(persistent, ephemeral, measured=True)))

    def send(self, *messages: Message) -> None:
        self.heard += messages

    def send_frame(self, frame: bytes) -> None:
        self.heard += map(decode_from_broker, self._frames.feed(frame))

    def send_with(self, message: Message, descriptor: int) -> None:
        self.heard.append(message)

    def is_alive(self) -> bool:
        return False

    def is_behind(self) -> bool:
        return False

    def heard_of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def refusal(self) -> Error | None:
        """The one that it was told since this was asked last."""
        errors = self.heard_of(Error)
        self.heard = [message for message in self.heard if not isinstance(message, Error)]
        assert len(errors) <= 1
        return errors[0] if errors else None

    def sees(self) -> dict[str, SessionView]:
        self.says(Look())
        snapshot = self.heard_of(Snapshot)[-1]
        return {view.id: view for device in snapshot.devices for view in device.sessions}


class Broker:
    """A service with these rules, in a file that may change."""

    def __init__(self, path: Path, text: str = GROUPS) -> None:
        self.path = path
        path.write_text(text)
        self.service = Service(load({}, rulebook=str(path)), DEVICES, started=0.0)

    def client(self, user: str, *groups: str) -> Client:
        return Client(self.service, user, groups)

    def writes(self, text: str) -> None:
        """The file is another one from now on, and the broker has looked."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        self.service.tick(2.0)

    def snapshot(self) -> Snapshot:
        return self.service.snapshot(1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


@pytest.fixture
def broker(path: Path) -> Broker:
    return Broker(path)


# --- roles ----------------------------------------------------------------------------------------

ALL = {"ann", "bob", "tim", "tina", "ada"}


@pytest.mark.parametrize(
    ("message", "allowed"),
    [
        (Change("a", weight=2.0), {"ann", "tim", "ada"}),
        (Change("a", paused=True), {"ann", "ada"}),
        (Change("a", weight=2.0, paused=True), {"ann", "ada"}),
        (Change("a", priority=-1), {"ann", "ada"}),
        (Change("a", priority=1), {"ada"}),
        (Recall("a"), {"ann", "ada"}),
        (SetPolicy("fifo"), {"ada"}),
        (Shutdown(), {"ada"}),
    ],
    ids=str,
)
def test_a_deed_is_for_those_roles_and_no_other(
    broker: Broker, message: ToBroker, allowed: set[str]
) -> None:
    notebook = broker.client("ann").opens("a")
    notebook.says(Request(1))
    for user in sorted(ALL - allowed):
        client = broker.client(user)
        client.says(message)
        refusal = client.refusal
        assert refusal is not None
        assert refusal.code == "not_permitted"
        assert refusal.message.startswith("only ")
    assert (broker.snapshot().policy, broker.service.is_stopping) == ("fair", False)
    (view,) = broker.snapshot().devices[0].sessions
    assert (view.weight, view.priority, view.state) == (1.0, 0, "running")
    for user in sorted(allowed):
        client = broker.client(user)
        client.says(message)
        assert client.refusal is None
        assert client.heard_of(Done)


def test_a_priority_above_0_is_refused_at_registration_to_whom_it_is_refused_later(
    broker: Broker,
) -> None:
    refusal = broker.client("ann").opens("a", priority=1).refusal
    assert refusal is not None
    assert refusal.message == "only an admin may set a priority above 0"
    assert broker.client("ada").opens("b", priority=1).heard_of(Opened)


def test_an_admin_of_the_file_is_told_that_it_is_one(broker: Broker) -> None:
    told = {
        user: welcome.is_administrator
        for user in ("ann", "tim", "ada")
        for welcome in broker.client(user).heard_of(Welcome)
    }
    assert told == {"ann": False, "tim": False, "ada": True}


def test_everybody_sees_who_is_in_which_group_and_who_teaches_it(broker: Broker) -> None:
    broker.client("ann").opens("a")
    broker.client("eve", "students").opens("e")
    broker.client("pat").opens("p")
    assert {id: view.group for id, view in broker.client("pat").sees().items()} == {
        "a": "physics",
        "e": "course",
        "p": "",
    }
    assert [(group.name, group.teachers) for group in broker.snapshot().groups] == [
        ("physics", ["tim"]),
        ("course", ["tina"]),
    ]


# --- names ----------------------------------------------------------------------------------------

HIDDEN = f'notebook_names = "teachers"\n{GROUPS}'


def names_seen_by(client: Client) -> set[str]:
    return {view.name for view in client.sees().values()}


def watched_by(client: Client) -> set[str]:
    client.says(Watch())
    (snapshot,) = client.heard_of(Snapshot)
    return {view.name for device in snapshot.devices for view in device.sessions}


@pytest.mark.parametrize("looks", [names_seen_by, watched_by])
@pytest.mark.parametrize(
    ("user", "hidden"),
    [("ann", {"bob", "eve"}), ("tim", {"eve"}), ("tina", {"ann", "bob"}), ("ada", set())],
)
def test_names_are_for_owners_teachers_of_the_group_and_admins(
    path: Path, looks: Any, user: str, hidden: set[str]
) -> None:
    broker = Broker(path, HIDDEN)
    for owner, groups in (("ann", ()), ("bob", ()), ("eve", ("students",))):
        broker.client(owner, *groups).opens(f"of-{owner}")
    assert looks(broker.client(user)) == {
        f"a notebook of {owner}" if owner in hidden else f"of-{owner}.ipynb"
        for owner in ("ann", "bob", "eve")
    }


def test_without_that_rule_everybody_sees_all_names(broker: Broker) -> None:
    broker.client("ann").opens("a")
    assert names_seen_by(broker.client("pat")) == watched_by(broker.client("pat")) == {"a.ipynb"}


@pytest.mark.parametrize(
    ("user", "name"), [("ann", "first.ipynb"), ("bob", "a notebook of ann"), ("ada", "first.ipynb")]
)
def test_who_waits_reads_no_name_that_it_may_not_see(path: Path, user: str, name: str) -> None:
    broker = Broker(path, HIDDEN)
    broker.client("ann").opens("first", GB, GB).says(Request(1))
    waiting = broker.client(user).opens("second", GB, GB)
    waiting.says(Request(1))
    broker.service.tick(9.0)
    (wait,) = waiting.heard_of(Wait)
    assert (wait.holder, wait.reason) == (name, f"waits for {name}")
    assert waiting.sees()["second"].reason == f"waits for {name}"


def test_a_name_is_shown_as_it_is_whatever_is_in_it(path: Path) -> None:
    broker = Broker(path, HIDDEN)
    ann = broker.client("ann")
    ann.says(Open(id="a", name='"\\u0002b\\u0003" \\ \N{SNOWMAN}\x02b\x03', device="host"))
    broker.client("bob").opens("b")
    (seen,) = watched_by(ann) - {"a notebook of bob"}
    assert seen == '"\\u0002b\\u0003" \\ \N{SNOWMAN}?b?'


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
def strict(path: Path) -> Broker:
    return Broker(path, QUOTAS)


def test_one_notebook_too_many_is_refused_with_rule_number_and_whom_to_ask(strict: Broker) -> None:
    assert strict.client("bob").opens("b1").heard_of(Opened)
    refusal = strict.client("bob").opens("b2").refusal
    assert refusal is not None
    assert (refusal.code, refusal.message) == (
        "quota",
        "bob would have 2 notebooks, where the rule sessions in [quotas.users.bob] allows 1;"
        " ask help@example.org",
    )
    assert strict.client("ann").opens("a1").heard_of(Opened)
    assert strict.client("ann").opens("a2").heard_of(Opened)
    assert strict.client("ann").opens("a3").refusal is not None


def test_a_notebook_that_ends_makes_room_for_another(strict: Broker) -> None:
    bob = strict.client("bob").opens("b1")
    bob.says(Close())
    assert strict.client("bob").opens("b2").heard_of(Opened)


def test_who_opens_again_is_one_notebook(strict: Broker) -> None:
    bob = strict.client("bob").opens("b1")
    bob.opens("b1")
    assert (bob.refusal, len(bob.heard_of(Opened))) == (None, 2)


def test_who_comes_back_with_a_turn_goes_on_with_it(strict: Broker) -> None:
    assert strict.client("bob").opens("b1").heard_of(Opened)
    assert strict.client("bob").opens("b2", turn=3, holding=True).heard_of(Opened)


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
    grown = strict.client("ann").opens("a2")
    grown.says(Request(1))
    grown.reports(persistent * GB, ephemeral * GB)
    for client in (first, grown):
        refusal = client.refusal
        assert refusal is not None
        assert refusal.code == "quota"
        assert refusal.message.startswith(f"ann would have {sentence}")
    other = strict.client("pat").opens("p", 4 * GB, 2 * GB)
    other.says(Request(1))
    other.reports(4 * GB, 2 * GB)
    assert other.refusal is None


def test_a_users_notebooks_count_together_and_only_who_grows_is_refused(strict: Broker) -> None:
    first, second = (strict.client("pat").opens(name, 2 * GB) for name in "ab")
    second.reports(3 * GB)
    assert second.refusal is not None
    first.reports(2 * GB)
    assert first.refusal is None
    second.says(Request(1))
    second.reports(2 * GB)
    assert second.refusal is None


def test_a_groups_users_count_together(strict: Broker) -> None:
    strict.client("ann").opens("a", 4 * GB)
    refusal = strict.client("bob").opens("b", 3 * GB).refusal
    assert refusal is not None
    assert refusal.message.startswith(
        "physics would have 7.0 GiB of persistent memory, where the rule"
        " persistent in [quotas.groups.physics] allows 6.0 GiB"
    )
    assert strict.client("pat").opens("p", 3 * GB).heard_of(Opened)


def test_who_has_more_than_it_may_is_told_once_and_takes_no_larger_lane(strict: Broker) -> None:
    greedy = strict.client("ann").opens("a", GB, GB)
    for _ in range(3):
        greedy.reports(GB, 9 * GB)
    assert greedy.refusal is not None
    view = strict.client("pat").sees()["a"]
    assert (view.ephemeral_bytes, view.measured) == (GB, False)
    greedy.reports(GB, GB)
    assert strict.client("pat").sees()["a"].measured


def test_what_a_device_cannot_hold_counts_for_no_quota(path: Path) -> None:
    broker = Broker(path, "[quotas]\npersistent = '100 GiB'")
    first, second = (broker.client("ann").opens(name) for name in "ab")
    first.reports(90 * GB)
    assert first.refusal is not None
    second.reports(20 * GB)
    assert second.refusal is None


# --- the file -------------------------------------------------------------------------------------


def test_a_changed_file_is_in_force_at_the_next_tick(strict: Broker) -> None:
    strict.client("bob").opens("b1")
    assert strict.client("bob").opens("b2").refusal is not None
    strict.writes(QUOTAS.replace("sessions = 1", "sessions = 2"))
    assert strict.client("bob").opens("b2").heard_of(Opened)


def test_a_wrong_file_is_shown_and_the_old_rules_stay_in_force(strict: Broker) -> None:
    looker = strict.client("pat")
    looker.says(Watch(0.0))
    strict.writes("sessions = 2")
    assert looker.heard_of(Snapshot)[-1].rulebook_error == (
        f"the rules in {strict.path} are wrong: sessions is not known; contact, admins,"
        " notebook_names, time_zone, groups, users, quotas, reservations, idle, overdue,"
        " accounting are; the rules before it stay in force"
    )
    strict.client("bob").opens("b1")
    assert strict.client("bob").opens("b2").refusal is not None
    strict.writes(GROUPS)
    assert strict.snapshot().rulebook_error == ""


def test_a_frame_is_as_long_as_it_says(strict: Broker) -> None:
    """Names change the length of what was encoded."""
    strict.client("ann").opens("a")
    frames: list[bytes] = []
    looker = strict.client("pat")
    looker.send_frame = frames.append  # type: ignore[method-assign]
    looker.says(Watch())
    (frame,) = frames
    assert int.from_bytes(frame[:HEADER_BYTES], "big") == len(frame) - HEADER_BYTES


def test_nobody_is_granted_less_by_rules_that_do_not_concern_it(strict: Broker) -> None:
    pat = strict.client("pat").opens("p", GB, GB)
    pat.says(Request(1))
    assert pat.heard_of(Grant)
