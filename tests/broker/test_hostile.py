"""What somebody hostile tries at a broker that all users share, and does not get."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_gpushare import protocol
from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.accounts import MOST_LOST, MOST_OF_A_USER, Accounts, Seen
from jupyter_gpushare.broker.reports import REPORTS_OF_A_USER
from jupyter_gpushare.broker.rules import MAX_AMONG
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.start import connect
from jupyter_gpushare.broker.throttle import MOST_LINES, WINDOW_SECONDS, Throttle
from jupyter_gpushare.client import Client
from jupyter_gpushare.devices import Device
from jupyter_gpushare.protocol import (
    PROTOCOL,
    Account,
    Demand,
    Error,
    Finish,
    Grant,
    Hello,
    Look,
    Open,
    Opened,
    Request,
    Rests,
    ToBroker,
    sealed,
)
from jupyter_gpushare.protocol import (
    Accounts as Told,
)
from jupyter_gpushare.session import Session
from jupyter_gpushare.settings import Settings, load

from .listener import Listener

GB = 1 << 30
DEVICES = [Device("host", 64 * GB, "main memory", lambda: HostLaneMemory(1 << 20))]
TRUSTED = """
[groups.lab]
members = [{}]
trusted = true
"""


class Visitor(Listener):
    """Somebody at a service."""

    def __init__(self, service: Service, user: str) -> None:
        super().__init__(user)
        self.service = service
        self.says(Hello(PROTOCOL))

    def says(self, message: ToBroker, now: float = 1.0) -> Visitor:
        self.service.handle(self, message, now)
        return self

    def opens(self, name: str, **more: Any) -> Visitor:
        demand = Demand(1000, 1000, measured=True)
        return self.says(Open(name, f"{name}.ipynb", demand=demand, **more))

    @property
    def refusals(self) -> list[str]:
        return [error.message for error in self.heard_of(Error)]


@pytest.fixture
def service() -> Service:
    return Service(load({}), DEVICES, started=0.0)


# --- the ids of sessions --------------------------------------------------------------------------


def test_a_stranger_who_is_first_after_a_restart_does_not_get_the_session_of_another(
    settings: Settings, look: Any
) -> None:
    """All see the ids of all."""
    session = Session(settings, name="mine")
    session.open()
    (seen,) = look().devices[0].sessions
    assert session.id == seen.id
    session.close()
    service = Service(load({}), DEVICES, started=0.0)  # the next broker, that knows nobody
    thief = Visitor(service, "thief").opens(seen.id)
    guesser = Visitor(service, "guesser").opens(seen.id, secret="0" * 32)
    owner = Visitor(service, "owner").says(session._registration())
    assert thief.refusals == guesser.refusals
    assert "opens with the secret of its own alone" in thief.refusals[0]
    assert owner.heard_of(Opened)


def test_the_secret_of_a_session_is_seen_by_nobody(service: Service) -> None:
    secret, key = "1" * 32, "2" * 32
    opened = Open(sealed(secret), "a", mailbox="m", key=key, secret=secret)
    shown = Visitor(service, "a").says(opened).says(Rests(1)).says(Look()).heard
    assert sealed(secret) in str(shown)
    for hidden in (secret, key):
        assert hidden not in str(shown)
        assert hidden not in repr(opened)


# --- memory ---------------------------------------------------------------------------------------


def memory_of_a_turn(visitor: Visitor, turn: int) -> int:
    visitor.says(Request(turn))
    grant = visitor.heard_of(Grant)[-1]
    assert grant.turn == turn
    return grant.memory


def test_who_leaves_a_trusted_group_maps_no_memory_that_the_others_use(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(TRUSTED.format('"ann", "bob"'))
    service = Service(load({}, rulebook=str(rules)), DEVICES, started=0.0)
    ann, bob = (Visitor(service, user).opens(user) for user in ("ann", "bob"))
    shared = memory_of_a_turn(ann, 1)
    ann.says(Finish(1))
    assert memory_of_a_turn(bob, 1) == shared != 0
    bob.says(Finish(1))
    rules.write_text(TRUSTED.format('"bob"'))
    service.tick(2.0)
    assert (ann.is_open, bob.is_open) == (False, True)
    assert memory_of_a_turn(bob, 2) not in (0, shared)


def test_who_has_a_turn_keeps_its_memory_while_another_leaves_the_group(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(TRUSTED.format('"ann", "bob"'))
    service = Service(load({}, rulebook=str(rules)), DEVICES, started=0.0)
    _, bob = (Visitor(service, user).opens(user) for user in ("ann", "bob"))
    before = memory_of_a_turn(bob, 1)
    rules.write_text(TRUSTED.format('"bob"'))
    service.tick(2.0)
    assert bob.heard_of(Grant)[-1].memory == before
    bob.says(Finish(1))
    assert memory_of_a_turn(bob, 2) not in (0, before)


def test_descriptors_that_come_with_messages_are_not_kept(
    settings: Settings, broker_pid: int
) -> None:
    with connect(settings) as connection, Client.connect(settings) as looker:
        connection.sendall(protocol.encode(Hello(PROTOCOL)))
        connection.recv(4096)
        before = psutil.Process(broker_pid).num_fds()
        for _ in range(20):
            socket.send_fds(connection, [protocol.encode(Look())], [0] * 100)
            connection.recv(1 << 20)
        looker.look()
        assert psutil.Process(broker_pid).num_fds() == before


# --- the time and memory of the broker ------------------------------------------------------------


def test_who_connects_and_says_nothing_is_closed(settings: Settings) -> None:
    with connect(settings) as silent, Client.connect(settings) as looker:
        silent.sendall(protocol.encode(Hello(PROTOCOL))[:-1])
        assert silent.recv(1) == b""
        assert looker.look()


def test_a_session_that_names_countless_devices_is_refused(service: Service) -> None:
    visitor = Visitor(service, "a").opens("a", among=["host"] * (MAX_AMONG + 1))
    assert f"at most {MAX_AMONG} devices" in visitor.refusals[0]


def test_a_user_who_asks_for_countless_reports_leaves_room_for_others(service: Service) -> None:
    greedy = [Visitor(service, "greedy") for _ in range(REPORTS_OF_A_USER + 1)]
    for visitor in (*greedy, other := Visitor(service, "other")):
        visitor.says(Account(0.0, 1.0))
    assert f"{REPORTS_OF_A_USER} reports of a user" in greedy[-1].refusals[0]
    service.accounts.close()
    service.tick(2.0)
    assert other.heard_of(Told)


def seen(user: str) -> Seen:
    return Seen(user, "", "a.ipynb", "host", 1.0, 0.0, 0, 0)


@pytest.fixture
def accounts() -> Iterator[Accounts]:
    yield (accounts := Accounts(now=0.0))
    accounts.close()


def test_countless_sessions_that_get_lost_are_not_remembered_for_long(accounts: Accounts) -> None:
    """And what others had is not forgotten for them."""
    accounts.follow(0.0, {"mine": seen("ada")})
    accounts.follow(1.0, {f"{number}": seen("eve") for number in range(MOST_LOST)})
    accounts.follow(2.0, {})
    assert len(accounts._counted) == MOST_OF_A_USER + 1
    assert "mine" in accounts._counted


def test_a_session_that_closes_is_not_remembered(accounts: Accounts) -> None:
    accounts.follow(0.0, {"a": seen("ada")})
    accounts.closed("a")
    assert not accounts._counted


def test_who_makes_the_broker_complain_does_not_fill_its_log() -> None:
    throttle = Throttle()

    def passes(at: float) -> str:
        line = logging.LogRecord("broker", logging.WARNING, "", 0, "%d is wrong", (7,), None)
        line.created = at
        return line.getMessage() if throttle.filter(line) else ""

    said = [passes(1000.0) for _ in range(MOST_LINES + 50)]
    assert said == ["7 is wrong"] * MOST_LINES + [""] * 50
    assert passes(1000.0 + WINDOW_SECONDS) == "(50 lines were left out) 7 is wrong"
    assert passes(500.0) == "7 is wrong", "the clock was set back"


# --- secrets --------------------------------------------------------------------------------------


def test_a_broker_keeps_no_secret_of_the_process_that_starts_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTERHUB_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("ORDINARY", "loud")
    with Client.connect(settings) as client:
        broker = psutil.Process(client.welcome.pid)
        assert "hush" not in broker.environ().values()
        assert broker.environ()["ORDINARY"] == "loud"
        assert broker.cmdline() == [sys.executable, "-m", "jupyter_gpushare.broker"]


def test_files_of_a_broker_are_its_users_alone(settings: Settings) -> None:
    umask = os.umask(0)
    try:
        Client.connect(settings).close()
    finally:
        os.umask(umask)
    directory = Path(settings.socket).parent
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in directory.iterdir()}
    assert {"b.sock", "b.lock", "b.turns", "b.log", "b.start", "accounts.sqlite"} <= modes.keys()
    assert set(modes.values()) == {"0o600"}, modes


def test_rules_that_everybody_may_write_are_not_followed(
    settings: Settings, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('admins = ["eve"]')
    rules.chmod(0o666)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.broker"],
        env={**os.environ, "JUPYTER_GPUSHARE_RULEBOOK": str(rules)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"everybody may write to {rules}" in done.stderr
