"""Live changes by people stay in force at the next broker."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpushare.broker.admin.live_changes import KEPT_SECONDS, MOST_AWAY, LiveChanges
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ....conftest import Opened, Sessions
from ....polling import until
from ..listener import MIB, Speaker

HOST = Device("host", 100 * MIB, "main memory")
RULES = 'admins = ["adam"]\n[groups.course]\nmembers = ["ada"]\nteachers = ["tina"]'
DEMAND = Demand(MIB, MIB, measured=True)
RESTARTED = "The broker has restarted; "


class Brokers:
    """A sequence of brokers at one socket. `begin` starts the next one, however the last one ended.
    `now` is Unix time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "b.changes"
        self._rules = directory / "rules.toml"
        self._rules.write_text(RULES)
        self.now = 1e9
        self.begin()

    def begin(self, **settings: object) -> None:
        given = load({}, rulebook=str(self._rules), **settings)
        changes = LiveChanges(given, self.path, self._clock)
        changes.report()
        self.service = Service(given, [HOST], started=0.0, changes=changes, clock=self._clock)

    def _clock(self) -> float:
        return self.now

    def client(self, user: str) -> Speaker:
        return Speaker(self.service, user)

    def opens(self, id: str, user: str = "ada", **claims: Any) -> Speaker:
        opening = m.Open(id, id, demand=DEMAND)
        return self.client(user).says(replace(opening, **claims))

    def admin(self, *messages: m.Change | m.SetPolicy) -> None:
        for message in messages:
            assert self.client("adam").says(message).heard_of(m.Done)

    @property
    def policy(self) -> str:
        return self.service.snapshot(0.0).policy

    def live(self, id: str) -> tuple[float, int, bool]:
        views = self.service.snapshot(0.0).devices[0].sessions
        (view,) = (view for view in views if view.id == id)
        return view.weight, view.priority, view.state == "paused"


@pytest.fixture
def brokers(tmp_path: Path) -> Brokers:
    return Brokers(tmp_path)


def test_what_others_have_set_holds_after_a_kill_and_the_notebook_is_told(
    settings: Settings, opened: Opened, sessions: Sessions, broker_pid: int
) -> None:
    """A real broker is killed, and sessions come back with their own claims."""
    changed, other = opened("changed"), opened("other", weight=2.0)
    for session in (changed, other):
        session.cell_ends()  # so that it reads what it is told
    with Client.connect(settings) as client:
        client.ask(m.Change(changed.id, weight=3.0, priority=-1, paused=True))
        client.ask(m.SetPolicy("las", running_lanes=2))
    os.kill(broker_pid, signal.SIGKILL)
    until(lambda: len(sessions()) == 2)
    view = sessions()["changed"]
    assert (view.weight, view.priority, view.state) == (3.0, -1, "paused")
    assert sessions()["other"].weight == 2.0
    with Client.connect(settings) as client:
        (device,) = (one for one in client.look().devices if one.name == "host")
        assert (client.look().policy, device.running_lanes) == ("las", 2)
    told: list[str] = []

    def is_told() -> bool:
        told.extend(changed.take_notices())
        return bool(told)

    until(is_told)
    assert told == [f"{RESTARTED}pause, weight 3, priority -1 and the policy las hold as before."]
    assert other.take_notices() == []


# --- brokers one after the other ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "claims", "live"),
    [
        ({"paused": True}, {}, (1.0, 0, True)),
        ({"paused": False}, {"paused": True}, (1.0, 0, False)),
        ({"weight": 0.5}, {"weight": 1000.0}, (0.5, 0, False)),
        ({"priority": 7}, {"priority": -3}, (1.0, 7, False)),
        ({"priority": -7}, {"weight": 2.0}, (2.0, -7, False)),
    ],
)
def test_no_claim_of_a_notebook_undoes_what_an_admin_has_set(
    brokers: Brokers,
    change: dict[str, Any],
    claims: dict[str, Any],
    live: tuple[float, int, bool],
) -> None:
    """This holds at the next broker, and at the same one."""
    first = brokers.opens("a")
    brokers.admin(m.Change("a", **change))
    brokers.opens("a", **claims)
    assert brokers.live("a") == live
    assert first.session is None
    brokers.begin()
    assert len(brokers.opens("a", **claims).heard_of(m.Notice)) == 1
    assert brokers.live("a") == live
    assert brokers.opens("a", **claims).heard_of(m.Notice) == []
    assert brokers.live("a") == live


def test_a_priority_that_was_not_given_is_refused_as_before(brokers: Brokers) -> None:
    brokers.opens("a")
    brokers.admin(m.Change("a", priority=3))
    brokers.begin()
    assert brokers.opens("a", priority=4).last(m.Error).message.startswith("only an admin may")
    assert brokers.opens("a", "eve").heard_of(m.Notice) == []
    assert brokers.live("a") == (1.0, 0, False)  # it is another user's


def test_a_notebook_tells_itself_what_it_has_changed_of_itself(brokers: Brokers) -> None:
    notebook = brokers.opens("a")
    brokers.admin(m.Change("a", weight=3.0, paused=True))
    notebook.says(m.Change(None, weight=2.0)).says(m.Change("a", paused=False))
    assert not brokers.path.exists()
    brokers.begin()
    assert brokers.opens("a", weight=2.0).heard_of(m.Notice) == []
    assert brokers.live("a") == (2.0, 0, False)


def test_a_notebook_is_told_nothing_where_all_is_as_it_says_itself(brokers: Brokers) -> None:
    brokers.opens("a")
    brokers.admin(m.Change("a", paused=True), m.Change("a", paused=False), m.SetPolicy("las"))
    brokers.begin()
    assert brokers.opens("a").heard_of(m.Notice) == []
    assert brokers.live("a") == (1.0, 0, False)


def test_a_notebook_that_rests_keeps_what_was_set(brokers: Brokers) -> None:
    notebook = brokers.opens("a")
    brokers.admin(m.Change("a", weight=3.0))
    notebook.says(m.Rests(0)).says(m.Open("a", "a", demand=DEMAND))
    assert brokers.live("a") == (3.0, 0, False)


def test_nothing_stays_of_a_notebook_that_has_left_or_is_away_for_long(brokers: Brokers) -> None:
    for number in range(MOST_AWAY + 2):
        notebook = brokers.opens(f"a{number}")
        brokers.admin(m.Change(f"a{number}", weight=3.0))
        brokers.service.lost(notebook, 0.0)
    brokers.opens("b").says(m.Close())
    brokers.begin()
    for id, weight in (("a1", 1.0), ("a2", 3.0), ("b", 1.0)):
        brokers.opens(id)
        assert brokers.live(id)[0] == weight
    brokers.now += KEPT_SECONDS + 1.0
    brokers.admin(m.Change("b", weight=2.0))
    brokers.service.lost(brokers.opens("b"), 0.0)
    brokers.opens("a3")
    assert brokers.live("a3")[0] == 1.0


def test_policies_and_running_lanes_hold_until_the_settings_or_the_last_client_go(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.admin(m.SetPolicy("LAS", running_lanes=3))
    with caplog.at_level(logging.INFO):
        brokers.begin()
    assert caplog.messages == [
        f"{RESTARTED}the policy las on host and 3 running lanes on host hold as before."
    ]
    assert brokers.policy == "las"
    brokers.begin(policy="pack")
    assert brokers.policy == "pack"
    brokers.begin()
    brokers.service.changes.clear()  # as if the broker ends for lack of clients
    assert not brokers.path.exists()
    brokers.begin()
    assert brokers.policy == "fair"


def test_a_class_goes_on_and_the_policy_before_it_comes_back(brokers: Brokers) -> None:
    brokers.admin(m.SetPolicy("las"))
    brokers.client("tina").says(m.ClassMode("course", True, seconds=60.0))
    brokers.begin()
    assert brokers.policy == "classroom"
    brokers.now += 61.0
    brokers.service.tick(1.0)
    assert (brokers.policy, brokers.service.snapshot(1.0).classes) == ("las", [])
    brokers.begin()
    assert brokers.policy == "las"


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\0\n",
        b"[" * 100_000,
        b"[]",
        b'{"policy": 1, "lanes": 0}',
        b'{"policy": "fair", "lanes": 0, "policies": {"host": "fastest"}}',
        b'{"policy": "fair", "lanes": 0, "running_lanes": {"host": -1}}',
        b'{"policy": "fair", "lanes": 0, "sessions": {"a": {"user": "ada", "weight": -1}}}',
        b'{"policy": "fair", "lanes": 0, "classes": {"host": ["course", "never", "fair"]}}',
    ],
)
def test_garbage_changes_nothing_and_is_reported(
    brokers: Brokers, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.path.write_bytes(text)
    brokers.begin()
    (sentence,) = caplog.messages
    assert sentence.startswith("what was changed live under the broker before is lost, since ")
    assert brokers.policy == "fair"
    brokers.opens("a")
    assert brokers.live("a") == (1.0, 0, False)
    brokers.admin(m.SetPolicy("las"))
    brokers.begin()
    assert brokers.policy == "las"


def test_the_file_is_its_users_alone_and_a_link_in_its_place_empties_no_other_file(
    brokers: Brokers, tmp_path: Path
) -> None:
    (precious := tmp_path / "precious").write_text("mine")
    for name in ("b.changes", "b.changes.new"):
        (tmp_path / name).symlink_to(precious)
    brokers.begin()
    brokers.admin(m.SetPolicy("las"))
    assert precious.read_text() == "mine"
    assert (brokers.path.stat().st_mode & 0o777, brokers.path.is_symlink()) == (0o600, False)


def test_a_file_that_cannot_be_written_is_reported_once_and_fails_no_command(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "b.changes.new").mkdir()
    brokers.admin(m.SetPolicy("las"), m.SetPolicy("fifo"))
    (sentence,) = caplog.messages
    assert sentence.startswith("a broker after this one cannot know what was changed live: ")
    assert brokers.policy == "fifo"
