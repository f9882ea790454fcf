"""Attacks of a hostile user on a shared broker fail."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.access.identity import Identity
from jupyter_gpushare.broker.accounting.accounts import MOST_LOST, MOST_OF_A_USER, AccountBook, Seen
from jupyter_gpushare.broker.accounting.ledger import UsageDatabase
from jupyter_gpushare.broker.accounting.reports import REPORTS_OF_A_USER
from jupyter_gpushare.broker.grants.grants import RETURN_SECONDS
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.broker.transport.log_limit import MOST_LINES, WINDOW_SECONDS, Throttle
from jupyter_gpushare.broker.validation import MAX_AMONG
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.devices import Device
from jupyter_gpushare.settings import Settings, accounts_path, load
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import ToBroker
from jupyter_gpushare.wire.handoff_slot import HandoffSlot
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.wire.snapshot import Snapshot

from ....conftest import wait_for_exit
from ....polling import next_of, until
from ..listener import Speaker
from ..processes import open_files, run_broker

GB = 1 << 30
DEVICES = [Device("host", 64 * GB, "main memory", lambda: HostLaneMemory(1 << 20))]
TRUSTED = """
[groups.lab]
members = [{}]
trusted = true
"""


class Visitor(Speaker):
    """A user that is connected to a service from its first second on."""

    def says(self, message: ToBroker, now: float = 1.0) -> Visitor:
        return super().says(message, now)

    def opens(self, name: str, **more: Any) -> Visitor:
        demand = Demand(1000, 1000, measured=True)
        return self.says(m.Open(name, f"{name}.ipynb", demand=demand, **more))

    @property
    def refusals(self) -> list[str]:
        return [error.message for error in self.heard_of(m.Error)]


# --- the ids of sessions --------------------------------------------------------------------------


def test_a_stranger_that_is_first_after_a_restart_does_not_get_the_session_of_another(
    settings: Settings, look: Any
) -> None:
    """All users see the ids of all sessions."""
    session = Session(settings, name="mine")
    session.open()
    (seen,) = look().devices[0].sessions
    assert session.id == seen.id
    session.close()
    service = Service(load({}), DEVICES, started=0.0)  # the next broker, which knows no session
    thief = Visitor(service, "thief").opens(seen.id)
    guesser = Visitor(service, "guesser").opens(seen.id, secret="0" * 32)
    owner = Visitor(service, "owner").says(session._registration.message())
    assert thief.refusals == guesser.refusals
    assert "opens with the secret of its own alone" in thief.refusals[0]
    assert owner.heard_of(m.Opened)


def test_the_secret_of_a_session_is_not_visible(service: Service) -> None:
    secret, key = "1" * 32, "2" * 32
    opened = m.Open(m.sealed(secret), "a", handoff_slot="m", key=key, secret=secret)
    shown = Visitor(service, "a").says(opened).says(m.Rests(1)).says(m.Look()).heard
    assert m.sealed(secret) in str(shown)
    for hidden in (secret, key):
        assert hidden not in str(shown)
        assert hidden not in repr(opened)


# --- claims of a session about its past -----------------------------------------------------------


def states(snapshot: Snapshot) -> dict[str, str]:
    return {view.id: view.state for view in snapshot.devices[0].sessions}


def test_a_session_that_claims_a_turn_which_was_not_granted_has_none(
    settings: Settings, broker_pid: int
) -> None:
    """The session is asked to yield, like a process that computes by mistake."""
    with Client.connect(settings) as holder, Client.connect(settings) as attacker:
        holder.ask(m.Open("holder", "h", "host", demand=Demand(1000, 1000, measured=True)))
        holder.send(m.Request(1))
        next_of(holder, m.Grant)
        claim = m.Open("attacker", "a", "host", turn=1, holding=True)
        assert isinstance(attacker.ask(claim), m.Opened)
        assert attacker.receive() == m.Yield(1)
        assert states(holder.look()) == {"holder": "running", "attacker": "idle"}
        attacker.send(m.Request(2))
        assert states(attacker.look()) == {"holder": "running", "attacker": "waiting"}


def test_a_session_that_loses_its_connection_in_its_turn_brings_it_back_once(
    service: Service,
) -> None:
    for lost_at, state in ((2.0, "running"), (4.0, "idle")):
        visitor = Visitor(service, "ada")
        if state == "running":
            visitor.opens("a").says(m.Request(1))
        else:
            visitor.opens("a", turn=1, holding=True)
        service.lost(visitor, lost_at)
        back = Visitor(service, "ada")
        back.says(m.Open("a", "a", turn=1, holding=True), lost_at + 1.0)
        assert states(service.snapshot(lost_at + 1.0)) == {"a": state}
        service.lost(back, lost_at + 1.5)


def test_a_turn_that_was_lost_long_ago_is_not_brought_back(service: Service) -> None:
    """Turns cannot be saved for a time when others wait."""
    visitor = Visitor(service, "ada").opens("a").says(m.Request(1))
    service.lost(visitor, 2.0)
    back = Visitor(service, "ada")
    back.says(m.Open("a", "a", turn=1, holding=True), 2.0 + RETURN_SECONDS)
    assert states(service.snapshot(40.0)) == {"a": "idle"}


def test_lost_sessions_are_charged_for_no_time_of_their_absence(service: Service) -> None:
    """Otherwise a user could spend the daily seconds of a group without using the device."""
    for number in range(40):
        visitor = Visitor(service, "eve").opens(f"n{number}").says(m.Request(1))
        service.lost(visitor, 1.0)
    for number in range(40):
        back = Visitor(service, "eve")
        back.says(
            m.Open(f"n{number}", "n", turn=1, holding=number % 2 == 0, device_seconds=8.0), 9.0
        )
        back.says(m.Finish(1), 9.0)
    service.tick(9.5)
    assert service.accounts.used_today("eve") < 1.0


def test_after_a_crash_only_sessions_on_the_recovery_journal_pass_the_quotas(
    settings: Settings, rules: Path
) -> None:
    rules.write_text('[quotas]\nsessions = 2\npersistent = "64 MiB"')
    limited = msgspec.structs.replace(settings, rulebook=str(rules))
    with Client.connect(limited) as first:
        first.ask(m.Open("first", "f", "host"))
        first.send(m.Request(1))
        next_of(first, m.Grant)
        os.kill(killed := first.welcome.pid, signal.SIGKILL)
    wait_for_exit(killed)
    clients = [Client.connect(limited) for _ in range(12)]
    codes = []
    for number, client in enumerate(clients):
        demand = Demand(15 << 20, 0, measured=True)
        name = "first" if number == 0 else f"n{number}"
        client.send(m.Open(name, "n", "host", turn=1, holding=True, demand=demand))
        answer = client.receive()
        codes.append(answer.code if isinstance(answer, m.Error) else type(answer).__name__)
    with Client.connect(limited) as subscriber:
        seen = subscriber.look()
    assert codes == ["Opened", "Opened", *["quota"] * 10]
    assert states(seen) == {"first": "running", "n1": "idle"}
    assert seen.devices[0].persistent_bytes <= 64 << 20
    for client in clients:
        client.close()


# --- memory ---------------------------------------------------------------------------------------


def visitors(service: Service, *users: str) -> list[Visitor]:
    return [Visitor(service, user).opens(user) for user in users]


def memory_of_a_turn(visitor: Visitor, turn: int) -> int:
    visitor.says(m.Request(turn))
    assert visitor.last(m.Grant).turn == turn
    return visitor.last(m.Grant).memory


class Lab:
    """A trusted group of bob and, by a group of the hub, ann. The methods `by_...` remove ann."""

    RULES = TRUSTED.format('"bob"') + 'hub_group = "students"\n'

    def __init__(self, service: Service, rules: Path) -> None:
        self._service, self._rules = service, rules
        self.ann, self.bob = Visitor(service, "ann"), Visitor(service, "bob")
        self.ann.groups = frozenset({"students"})
        self.ann.opens("ann")
        self.bob.opens("bob", handoff_slot="m", key="0" * 32)

    def by_its_rules(self) -> None:
        self.writes(TRUSTED.format('"bob"'))

    def by_a_group_before_it(self) -> None:
        self.writes(f'[groups.first]\nmembers = ["ann"]\n{self.RULES}')

    def by_the_hub(self) -> None:
        before, self.ann.groups = self.ann.groups, frozenset()
        self._service.follow_identity(self.ann, Identity("ann", before))

    def writes(self, rules: str) -> None:
        self._rules.write_text(rules)
        self._service.tick(2.0)


@pytest.mark.parametrize("remove", [Lab.by_its_rules, Lab.by_a_group_before_it, Lab.by_the_hub])
@pytest.mark.parametrize("leave", [None, m.Rests(1000), m.Close()], ids=["open", "rests", "off"])
def test_a_user_that_leaves_a_trusted_group_maps_no_memory_that_the_others_use(
    ruled: Any, rules: Path, remove: Callable[[Lab], None], leave: m.Rests | m.Close | None
) -> None:
    lab = Lab(ruled(Lab.RULES), rules)
    shared = memory_of_a_turn(lab.ann, 1)
    lab.ann.says(m.Finish(1))
    if leave is not None:
        lab.ann.says(leave)
    assert memory_of_a_turn(lab.bob, 1) == shared != 0
    lab.bob.says(m.Finish(1))
    remove(lab)
    assert (lab.ann.is_open, lab.bob.is_open) == (leave is not None, True)
    assert len(lab.bob.heard_of(m.RenewKey)) == 1
    assert memory_of_a_turn(lab.bob, 2) not in (0, shared)


def test_new_rules_that_leave_the_users_of_a_group_alone_leave_its_memory(
    ruled: Any, rules: Path
) -> None:
    lab = Lab(ruled(Lab.RULES), rules)
    shared = memory_of_a_turn(lab.bob, 1)
    lab.bob.says(m.Finish(1))
    lab.writes(Lab.RULES + 'weight = 2\n[groups.next]\nmembers = ["ann"]\n')
    assert not lab.bob.heard_of(m.RenewKey)
    assert memory_of_a_turn(lab.bob, 2) == shared != 0


def test_a_session_with_a_turn_keeps_its_memory_while_another_leaves_the_group(
    ruled: Any, rules: Path
) -> None:
    service = ruled(TRUSTED.format('"ann", "bob"'))
    _, bob = visitors(service, "ann", "bob")
    before = memory_of_a_turn(bob, 1)
    rules.write_text(TRUSTED.format('"bob"'))
    service.tick(2.0)
    assert bob.last(m.Grant).memory == before
    bob.says(m.Finish(1))
    assert memory_of_a_turn(bob, 2) not in (0, before)


def accepts(handoff_slot: HandoffSlot, handoff_token: str, turn: int) -> bool:
    """Whether a session accepts a direct handoff. Without one, the turn would wait for the
    broker."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handoff_slot.send(handoff_slot.name, handoff_token)
        return handoff_slot.wait(ours.fileno(), turn) is not None


def test_a_direct_handoff_that_was_kept_by_a_session_that_left_the_group_gives_no_turn(
    ruled: Any, rules: Path
) -> None:
    """Its memory is the group's, and the session that has left still maps it."""
    service = ruled(TRUSTED.format('"ann", "bob", "cleo"'))
    handoff_slot = HandoffSlot()
    spy, cleo = visitors(service, "ann", "cleo")
    bob = Visitor(service, "bob").opens(
        "bob", handoff_slot=handoff_slot.name, key=handoff_slot.new_key()
    )
    memory_of_a_turn(bob, 1)
    bob.says(m.Finish(1))
    memory_of_a_turn(spy, 1)
    bob.says(m.Request(2))
    service.pass_time(2.0)
    kept = spy.last(m.Yield).successor.handoff_token
    assert accepts(handoff_slot, kept, 2)
    rules.write_text(TRUSTED.format('"bob", "cleo"'))
    service.tick(3.0)
    assert [type(message) for message in bob.heard].count(m.RenewKey) == 1
    bob.says(m.NewKey(handoff_slot.new_key()))
    assert not accepts(handoff_slot, kept, 2)
    service.lost(spy, 3.1)
    bob.says(m.Finish(2), 3.2)
    memory_of_a_turn(cleo, 1)
    bob.says(m.Request(3), 3.3)
    service.pass_time(4.0)
    token = cleo.last(m.Yield).successor.handoff_token
    assert accepts(handoff_slot, token, 3), "tokens of the new key count"


def test_until_a_key_is_renewed_turns_come_from_the_broker_alone(ruled: Any, rules: Path) -> None:
    service = ruled(TRUSTED.format('"ann", "bob", "cleo"'))
    bob = Visitor(service, "bob").opens("bob", handoff_slot="m", key="0" * 32)
    _, cleo = visitors(service, "ann", "cleo")
    rules.write_text(TRUSTED.format('"bob", "cleo"'))
    service.tick(2.0)
    memory_of_a_turn(bob, 1)
    bob.says(m.Finish(1))
    memory_of_a_turn(cleo, 1)
    bob.says(m.NewKey("wrong")).says(m.Request(2))
    assert "the key of a handoff slot" in bob.refusals[0]
    service.pass_time(3.0)
    assert cleo.last(m.Yield).successor is None


def test_descriptors_that_come_with_messages_are_not_kept(
    settings: Settings, broker_pid: int
) -> None:
    with connect(settings) as connection, Client.connect(settings) as subscriber:
        connection.sendall(framing.encode(m.Hello(m.PROTOCOL)))
        connection.recv(4096)
        before = psutil.Process(broker_pid).num_fds()
        for _ in range(20):
            socket.send_fds(connection, [framing.encode(m.Look())], [0] * 100)
            connection.recv(1 << 20)
        subscriber.look()
        assert psutil.Process(broker_pid).num_fds() == before


def test_the_last_session_that_leaves_leaves_no_lane_memory_and_no_use_uncounted(
    settings: Settings,
) -> None:
    lasting = msgspec.structs.replace(settings, idle_exit_seconds=0)
    with Client.connect(lasting) as client:
        client.ask(m.Open("a", "a", "host", demand=Demand(1000, 1 << 20, measured=True)))
        client.send(m.Request(1))
        next_of(client, m.Grant)
        broker = client.welcome.pid
        assert lane_memories(broker) == 1
        time.sleep(0.05)  # it computes
    ledger = UsageDatabase(accounts_path(settings))
    until(lambda: lane_memories(broker) == 0)
    until(lambda: any(seconds > 0.0 for _, _, seconds in ledger.used_since(0.0)))
    ledger.close()
    assert psutil.pid_exists(broker)


def lane_memories(pid: int) -> int:
    return sum("/memfd:" in file for file in open_files(pid).values())


# --- the time and memory of the broker ------------------------------------------------------------


@pytest.mark.system
def test_a_silent_connection_is_closed(settings: Settings) -> None:
    with connect(settings) as silent, Client.connect(settings) as subscriber:
        silent.sendall(framing.encode(m.Hello(m.PROTOCOL))[:-1])
        assert silent.recv(1) == b""
        assert subscriber.look()


def test_a_session_that_names_countless_devices_is_refused(service: Service) -> None:
    visitor = Visitor(service, "a").opens("a", among=["host"] * (MAX_AMONG + 1))
    assert f"at most {MAX_AMONG} devices" in visitor.refusals[0]


def test_a_user_that_asks_for_countless_reports_leaves_room_for_others(service: Service) -> None:
    greedy = [Visitor(service, "greedy") for _ in range(REPORTS_OF_A_USER + 1)]
    for visitor in (*greedy, other := Visitor(service, "other")):
        visitor.says(m.Account(0.0, 1.0))
    assert f"{REPORTS_OF_A_USER} reports of a user" in greedy[-1].refusals[0]
    service.accounts.close()
    service.tick(2.0)
    assert other.heard_of(m.Accounts)


def seen(user: str) -> Seen:
    return Seen(user, "", "a.ipynb", "host", 1.0, 0.0, 0, 0)


@pytest.mark.system
def test_countless_lost_sessions_are_not_remembered_for_long() -> None:
    """The broker does not forget the history of other sessions because of them either."""
    with contextlib.closing(AccountBook(now=0.0)) as accounts:
        accounts.follow(0.0, {"mine": seen("ada")})
        accounts.follow(1.0, {f"{number}": seen("eve") for number in range(MOST_LOST)})
        accounts.follow(2.0, {})
        assert len(accounts._counted) == MOST_OF_A_USER + 1
        assert "mine" in accounts._counted


def test_a_client_that_makes_the_broker_complain_does_not_fill_its_log() -> None:
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


def test_rules_that_all_users_may_write_are_not_followed(settings: Settings, rules: Path) -> None:
    rules.write_text('admins = ["eve"]')
    rules.chmod(0o666)
    done = run_broker(rulebook=str(rules))
    assert done.returncode == 1
    assert f"everybody may write to {rules}" in done.stderr
